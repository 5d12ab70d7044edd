//! Against small HTTP servers on loopback.

use std::collections::VecDeque;
use std::net::SocketAddr;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::Product;

use super::*;

/// A server that answers every request with the next status code, or the last one for ever; what it was asked.
struct Server {
    address: SocketAddr,
    asked: watch::Receiver<Vec<String>>,
    task: JoinHandle<()>,
}

async fn server_at(address: &str, codes: &[u16]) -> Server {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let codes = Arc::new(Mutex::new(VecDeque::from(codes.to_vec())));
    let (heard, asked) = watch::channel(Vec::new());
    let task = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = vec![0; 4096];
            let count = stream.read(&mut bytes).await.unwrap_or(0);
            let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
            heard.send_modify(|asked| asked.push(text.lines().next().unwrap_or_default().replace(" HTTP/1.1", "")));
            let code = {
                let mut codes = codes.lock();
                if codes.len() > 1 { codes.pop_front().unwrap() } else { codes[0] }
            };
            let body = if code < 300 {
                r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}"#.to_owned()
            } else {
                format!(r#"{{"kind":"Status","status":"Failure","message":"no","reason":"No","code":{code}}}"#)
            };
            let answer = format!(
                "HTTP/1.1 {code} X\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: \
                {}\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    Server { address, asked, task }
}

impl Server {
    fn asked(&self) -> Vec<String> {
        self.asked.borrow().clone()
    }

    /// Returns when it was asked so often.
    async fn is_asked(&self, times: usize) {
        self.asked.clone().wait_for(|asked| asked.len() >= times).await.unwrap();
    }
}

fn endpoint(address: SocketAddr) -> Endpoint {
    let server = format!("http://{address}");
    Endpoint { config: Config::new(server.parse().unwrap()), server }
}

fn switch(endpoints: Vec<Endpoint>) -> Switch {
    Switch::new(endpoints, Settings { retry: false, ..Settings::new("host", &Product::TEST) }).unwrap()
}

fn maps(switch: &Switch) -> Api<ConfigMap> {
    Api::namespaced(switch.client(), "x")
}

/// An address where nobody listens.
async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn the_next_endpoint_is_tried_where_the_first_does_not_answer_and_stays_in_use() {
    let second = server_at("127.0.0.1:0", &[200]).await;
    let switch = switch(vec![endpoint(nobody().await), endpoint(second.address)]);
    maps(&switch).get("a").await.unwrap();
    // Nothing reached the first: a write may go to the second just as well.
    maps(&switch).create(&PostParams::default(), &ConfigMap::default()).await.unwrap();
    assert_eq!(second.asked().len(), 2);
    let link = switch.link().borrow().clone();
    assert_eq!((link.away, link.server), (None, format!("http://{}", second.address)));
}

#[tokio::test]
async fn a_write_that_a_proxy_could_not_deliver_is_not_repeated_elsewhere_but_the_next_request_goes_there() {
    let first = server_at("127.0.0.1:0", &[502]).await;
    let second = server_at("127.0.0.1:0", &[200]).await;
    let switch = switch(vec![endpoint(first.address), endpoint(second.address)]);
    assert!(maps(&switch).create(&PostParams::default(), &ConfigMap::default()).await.is_err());
    assert_eq!((first.asked().len(), second.asked().len()), (1, 0));
    maps(&switch).get("a").await.unwrap();
    assert_eq!((first.asked().len(), second.asked().len()), (1, 1));
}

/// Two ways to one Harvester: its own, and Rancher's, where the account has no rights.
#[tokio::test]
async fn an_endpoint_that_refuses_is_left_for_one_that_does_not_and_is_tried_again_when_that_one_is_away() {
    for code in [401, 403] {
        let (refusing, good) = (server_at("127.0.0.1:0", &[code]).await, server_at("127.0.0.1:0", &[200]).await);
        let switch = switch(vec![endpoint(refusing.address), endpoint(good.address)]);
        maps(&switch).get("a").await.unwrap();
        maps(&switch).create(&PostParams::default(), &ConfigMap::default()).await.unwrap();
        assert_eq!((refusing.asked().len(), good.asked().len()), (1, 2), "{code}");
        let link = switch.link().borrow().clone();
        assert_eq!((link.server, link.refused), (format!("http://{}", good.address), None));
        good.task.abort();
        let _ = good.task.await;
        assert!(maps(&switch).get("a").await.is_err());
        assert_eq!(refusing.asked().len(), 2, "{code}: asked again");
    }
}

/// It answers, so nothing seems to be away; it must not be kept for that.
#[tokio::test]
async fn a_second_endpoint_that_refuses_is_left_when_the_first_one_is_back() {
    for code in [401, 403] {
        let (first, refusing) = (server_at("127.0.0.1:0", &[200]).await, server_at("127.0.0.1:0", &[code]).await);
        let switch = switch(vec![endpoint(first.address), endpoint(refusing.address)]);
        maps(&switch).get("a").await.unwrap();
        first.task.abort();
        let _ = first.task.await;
        for _ in 0..3 {
            assert!(maps(&switch).get("a").await.is_err(), "{code}");
        }
        let first = server_at(&first.address.to_string(), &[200]).await;
        tokio::time::pause();
        tokio::time::advance(REFUSED_ALIKE).await;
        tokio::time::resume();
        let asked = refusing.asked().len();
        for _ in 0..3 {
            maps(&switch).get("a").await.unwrap();
        }
        assert_eq!((first.asked().len(), refusing.asked().len()), (3, asked + 1), "{code}: asked once, and left");
        let link = switch.link().borrow().clone();
        assert_eq!((link.server, link.refused), (format!("http://{}", first.address), None), "{code}");
    }
}

#[tokio::test]
async fn what_all_endpoints_refuse_is_not_asked_twice_each_time() {
    let (first, second) = (server_at("127.0.0.1:0", &[403]).await, server_at("127.0.0.1:0", &[403]).await);
    let switch = switch(vec![endpoint(first.address), endpoint(second.address)]);
    for _ in 0..10 {
        assert!(maps(&switch).get("a").await.is_err());
    }
    assert_eq!((first.asked().len(), second.asked().len()), (10, 1));
    assert_eq!(switch.link().borrow().server, format!("http://{}", first.address));
}

#[tokio::test]
async fn a_server_that_is_back_is_found_at_once_and_told() {
    let address = nobody().await;
    let switch = switch(vec![endpoint(address)]);
    let (returns, mut link) = (switch.returns(), switch.link());
    let over = tokio::spawn(switch.clone().watch_over());
    assert!(maps(&switch).get("a").await.is_err());
    assert!(link.borrow().away.is_some());
    // An ingress in the place of the API server is not the API server.
    let ingress = server_at(&address.to_string(), &[404]).await;
    tokio::select! {
        () = ingress.is_asked(3) => {}
        _ = link.wait_for(|link| link.away.is_none()) => panic!("an ingress was taken for the API server"),
    }
    assert!(!returns.has_changed().unwrap());
    // This test may be slower than the next question.
    assert!(ingress.asked().iter().all(|asked| asked == "GET /readyz"), "{:?}", ingress.asked());
    ingress.task.abort();
    let _ = ingress.task.await;
    let server = server_at(&address.to_string(), &[200]).await;
    link.wait_for(|link| link.away.is_none()).await.unwrap();
    assert!(returns.has_changed().unwrap());
    assert_eq!(server.asked(), ["GET /readyz"], "the first good answer is enough");
    over.abort();
}

#[tokio::test]
async fn refused_credentials_show_and_are_forgotten_when_they_were_replaced() {
    let old = server_at("127.0.0.1:0", &[200, 401]).await;
    let new = server_at("127.0.0.1:0", &[200]).await;
    let switch = switch(vec![endpoint(old.address)]);
    let (client, returns) = (maps(&switch), switch.returns());
    client.get("a").await.unwrap();
    assert!(switch.link().borrow().refused.is_none());
    assert!(client.get("a").await.is_err());
    assert!(switch.link().borrow().refused.is_some() && switch.link().borrow().away.is_none());
    switch.replace(vec![endpoint(new.address)]).unwrap();
    assert!(switch.link().borrow().refused.is_none() && returns.has_changed().unwrap());
    client.get("a").await.unwrap();
}

#[tokio::test]
async fn a_guest_agent_that_does_not_answer_says_nothing_about_the_api() {
    let server = server_at("127.0.0.1:0", &[503]).await;
    let switch = switch(vec![endpoint(server.address)]);
    let path = "/apis/subresources.kubevirt.io/v1/namespaces/x/virtualmachineinstances/a/guestosinfo";
    let request = Request::get(path).body(Vec::new()).unwrap();
    assert!(switch.client().request_text(request).await.is_err());
    assert!(switch.link().borrow().away.is_none());
}

/// Requests that are taken and never answered, for ever or for so many; after that every request is answered 200. What
/// became of each, in order.
async fn mute_server(mute: usize) -> (SocketAddr, watch::Receiver<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (journal, seen) = watch::channel(Vec::new());
    tokio::spawn(async move {
        for number in 1.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let journal = journal.clone();
            tokio::spawn(async move {
                let note = |what: &str| journal.send_modify(|seen| seen.push(format!("{number} is {what}")));
                let mut bytes = [0; 4096];
                let _ = stream.read(&mut bytes).await;
                note("asked");
                if number > mute {
                    note("answered");
                    let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
                    let _ = stream.write_all(answer).await;
                    return;
                }
                while stream.read(&mut bytes).await.is_ok_and(|count| count > 0) {}
                note("given up");
            });
        }
    });
    (address, seen)
}

#[tokio::test]
async fn a_question_without_an_answer_does_not_hold_up_the_next_one() {
    let (address, mut seen) = mute_server(1).await;
    let switch = switch(vec![endpoint(address)]);
    switch.missed(0, Instant::now(), "no route to host");
    let over = tokio::spawn(switch.clone().watch_over());
    switch.link().wait_for(|link| link.away.is_none()).await.unwrap();
    let order = seen.wait_for(|seen| seen.len() >= 4).await.unwrap().clone();
    assert_eq!(order, ["1 is asked", "2 is asked", "2 is answered", "1 is given up"]);
    over.abort();
}

#[tokio::test]
async fn a_request_into_a_dead_wire_is_given_up_when_the_server_is_back() {
    let (address, mut seen) = mute_server(usize::MAX).await;
    let switch = switch(vec![endpoint(address)]);
    let maps = maps(&switch);
    let write = tokio::spawn(async move { maps.create(&PostParams::default(), &ConfigMap::default()).await });
    seen.wait_for(|seen| *seen == ["1 is asked"]).await.unwrap();
    switch.missed(0, Instant::now(), "no route to host");
    assert!(!write.is_finished());
    switch.answered(StatusCode::OK);
    // Not a time-out: that would be ten seconds later, and say so.
    let error = write.await.unwrap().unwrap_err();
    assert!(chain(&error).contains("it is given up now that the server answers again"), "{}", chain(&error));
}

/// A webhook that the server calls for a write does not answer. That was an outage, after which everything was listed
/// anew and all that was under way given up.
#[tokio::test]
async fn a_request_that_hangs_while_others_are_answered_is_no_outage() {
    let (address, mut seen) = mute_server(1).await;
    let request_timeout = Duration::from_secs(2);
    let settings = Settings { retry: false, request_timeout, ..Settings::new("host", &Product::TEST) };
    let switch = Switch::new(vec![endpoint(address)], settings).unwrap();
    let (returns, maps) = (switch.returns(), maps(&switch));
    let write = tokio::spawn(async move { maps.create(&PostParams::default(), &ConfigMap::default()).await });
    seen.wait_for(|seen| *seen == ["1 is asked"]).await.unwrap();
    let read = || Request::get("/readyz").body(Vec::new()).unwrap();
    switch.client().request_text(read()).await.unwrap();
    assert!(write.await.unwrap().is_err());
    assert!(switch.link().borrow().away.is_none());
    switch.client().request_text(read()).await.unwrap();
    assert!(!returns.has_changed().unwrap());
    // Nothing was answered since this one was sent.
    switch.missed(0, Instant::now(), "no route to host");
    assert!(switch.link().borrow().away.is_some());
}

#[tokio::test]
async fn a_watch_that_is_put_off_is_left_to_who_watches_and_other_requests_are_tried_again() {
    let server = server_at("127.0.0.1:0", &[429, 429, 200]).await;
    let switch = Switch::new(vec![endpoint(server.address)], Settings::new("host", &Product::TEST)).unwrap();
    let maps = maps(&switch);
    assert!(maps.watch(&kube::api::WatchParams::default(), "0").await.is_err());
    assert_eq!(server.asked().len(), 1);
    maps.get("a").await.unwrap();
    assert_eq!(server.asked().len(), 3);
}

/// Each pod that a PodDisruptionBudget protects cost ten seconds, and a time-out came in the place of the reason.
#[tokio::test]
async fn an_eviction_that_a_budget_refuses_is_answered_at_once_and_other_writes_are_tried_again() {
    let server = server_at("127.0.0.1:0", &[429, 429, 200]).await;
    let switch = Switch::new(vec![endpoint(server.address)], Settings::new("guest", &Product::TEST)).unwrap();
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(switch.client(), "x");
    let error = pods.evict("a", &kube::api::EvictParams::default()).await.unwrap_err();
    assert_eq!(crate::error::api_code(&error), Some(429));
    assert_eq!(server.asked().len(), 1);
    maps(&switch).create(&PostParams::default(), &ConfigMap::default()).await.unwrap();
    assert_eq!(server.asked().len(), 3);
}
