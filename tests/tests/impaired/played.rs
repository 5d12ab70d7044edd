//! Faults that `bench-announcer` plays, too: strangers, groups of nodes, late writes. Each is held to its limit here.

use e2e::lan_faults::{groups, late_writes, strangers};

use super::alone;

/// How long the API is away, as in the bench: Leases end, and each veto of a stranger would, too.
const WITHOUT_API: u64 = 60;

#[tokio::test]
async fn a_group_that_is_cut_off_from_clients_and_gateway_takes_nothing_over() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("minority").await.unwrap();
    groups::a_minority_is_cut_off(&bed, &case, 186).await.unwrap().went_unnoticed().unwrap();
}

#[tokio::test]
async fn an_owner_that_is_cut_off_with_a_few_is_replaced_for_the_many() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("majority").await.unwrap();
    groups::the_owner_is_cut_off_with_a_few(&bed, &case, 187).await.unwrap().holds().unwrap();
}

#[tokio::test]
async fn a_lost_hypervisor_with_the_owner_and_the_next_node_costs_what_one_node_costs() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("hypervisor").await.unwrap();
    groups::a_hypervisor_is_lost(&bed, &case, 188).await.unwrap().holds().unwrap();
}

#[tokio::test]
async fn nodes_that_are_unready_all_together_and_back_one_by_one_keep_their_addresses() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("unready").await.unwrap();
    groups::all_nodes_are_unready_and_back(&bed, &case, 189).await.unwrap().went_unnoticed().unwrap();
}

#[tokio::test]
async fn a_power_loss_while_each_write_is_late_by_a_second_costs_that_second() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("late").await.unwrap();
    late_writes::a_power_loss_while_writes_are_late(&bed, &case, 195).await.unwrap().holds().unwrap();
}

#[tokio::test]
async fn strangers_take_nothing_from_an_owner_that_lives_with_an_api_or_without() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("disputed").await.unwrap();
    for seen in strangers::take_nothing_from_an_owner_that_lives(&bed, &case, WITHOUT_API).await.unwrap() {
        seen.lost_three_at_most().unwrap();
    }
}

#[tokio::test]
async fn what_strangers_answer_for_is_taken_when_the_lease_of_its_lost_owner_has_run_out() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("haunted").await.unwrap();
    for seen in strangers::answer_for_an_owner_that_is_lost(&bed, &case).await.unwrap() {
        seen.holds().unwrap();
    }
}
