//! Frames at the other end of the cable, as any host of the LAN can send and see them.

use l2::{PacketSocket, Traffic};

use crate::bench::Bench;

/// A socket on the cable's other end.
pub fn socket(bench: &Bench, traffic: Traffic) -> PacketSocket {
    let link = bench.at_server("ip", "-o link show dev s0");
    let index = link.split(':').next().and_then(|index| index.parse().ok()).expect("its index");
    let runtime = tokio::runtime::Handle::current();
    bench.on_the_other_end(|| {
        let _runtime = runtime.enter();
        PacketSocket::open(index, traffic).expect("a socket")
    })
}
