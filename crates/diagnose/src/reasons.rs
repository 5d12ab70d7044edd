//! All reasons of Events and conditions, with their meaning and the remedy. One table for `doctor`, the reference
//! documentation, and the test of style.

/// One reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    /// The reason as written in the object.
    pub word: &'static str,
    /// Kind of the object that has it.
    pub on: &'static str,
    /// `Normal` or `Warning` for an Event; otherwise the condition, or what else tells it.
    pub kind: &'static str,
    /// The meaning.
    pub means: &'static str,
    /// The remedy.
    pub remedy: &'static str,
}

const fn reason(
    word: &'static str,
    on: &'static str,
    kind: &'static str,
    means: &'static str,
    remedy: &'static str,
) -> Reason {
    Reason { word, on, kind, means, remedy }
}

/// Finds a reason.
pub fn find(word: &str) -> Option<&'static Reason> {
    REASONS.iter().find(|reason| reason.word == word)
}

/// All reasons, on Services, Nodes, the Lease of the cloud controller, and the record.
#[rustfmt::skip]
pub const REASONS: &[Reason] = &[
    reason("Served", "Service", "condition True", "A node serves the address; the message names both.", "Nothing."),
    reason("JoinedOthers", "Service", "condition joined-address",
        "Another Service had the address before, and decides which node announces it.",
        "Nothing."),
    reason("NoLoadBalancerYet", "Service", "condition True",
        "Another program gave the Service its address, and the controller has no load balancer for it so far.",
        "Wait. If it stays, read the Events of the Service."),
    reason("Pending", "Service", "condition False",
        "The cloud controller gets an address from Harvester, or an announcer is about to put it on the network.",
        "Wait. After a minute the condition names what is in the way."),
    reason("CallFailed", "Service", "condition Unknown",
        "A request to Harvester or to the cluster failed; it is repeated.",
        "Wait; if it stays, correct what the message names."),
    reason("NoAnnouncer", "Service, ConfigMap", "condition Unknown, Warning",
        "No announcer has renewed its Lease for five minutes, so an address may be served by no node.",
        "See that DaemonSet kube-vip runs on the nodes and reaches the API server."),
    reason("NotReadYet", "Service", "condition Unknown",
        "The cloud controller has not read Harvester or the cluster yet.",
        "Check the cloud-config and its rights if the message names an error."),
    reason("HarvesterSilent", "Service", "condition Unknown",
        "The load balancer controller of Harvester has not looked at the object for 30 s, or given it no address for \
         2 min.",
        "Restart deployment harvester-load-balancer in namespace harvester-system of Harvester."),
    reason("NotServed", "Service", "condition False",
        "The address has been published for a minute, and no node serves it.",
        "Read the Events of the announcer on this Service; without any, see whether the announcer runs."),
    reason("NoMatchingPool", "Service", "condition False",
        "No IPPool of Harvester covers this network, project, namespace and cluster.",
        "Make an IPPool on Harvester, or widen the scope of one."),
    reason("NoSuchPool", "Service", "condition False",
        "The IPPool that annotation ippool names does not exist.",
        "Correct or remove the annotation, or make the pool."),
    reason("PoolExhausted", "Service", "condition False",
        "The IPPool has no free address. The Event is `SyncLoadBalancerFailed`.",
        "Widen the range of the pool, or delete Services."),
    reason("RefusedByHarvester", "Service", "condition False",
        "A webhook or a controller of Harvester refuses the object; its words are in the message.",
        "Correct what these words name."),
    reason("HarvesterForbidden", "Service", "condition False",
        "Harvester answers 401 or 403: the account lacks a right in the namespace of the machines.",
        "Run generate-addon again, and renew the Secret of the cloud-config."),
    reason("QuotaReached", "Service", "condition False",
        "The cluster has as many load balancers as --max-load-balancers allows.",
        "Delete a Service, share an address, or raise the limit."),
    reason("TooManyAtOnce", "Service", "warning",
        "More than three served Services, over a third of all, have lost their load balancer, or have another address \
         booked.",
        "Check the cloud-config and the pools of Harvester; if it is true, run identity confirm."),
    reason("AddressTaken", "Service", "condition False",
        "Another Service, a Node, a gateway or an API server has the address; the message names it.",
        "Name a free address outside all pools, or share the address."),
    reason("AddressShared", "Service", "condition False",
        "Other Services still use the address that this Service is to give up.",
        "Delete them, or remove their annotation primary-service."),
    reason("WrongFamily", "Service", "condition False",
        "Harvester booked an address of a family that spec.ipFamilies does not have.",
        "Name another pool, or change spec.ipFamilies."),
    reason("UnknownIPAM", "Service", "condition False",
        "Annotation ipam has a value that is none of pool, dhcp, static.",
        "Set one of the three, or remove the annotation."),
    reason("WrongAnnotation", "Service", "condition False",
        "An annotation has a value that is not accepted; the message names both.",
        "Correct the value as the message says."),
    reason("NotAccepted", "Service", "condition False",
        "The Service asks for what is not possible; the message names it.",
        "Correct the Service as the message says."),
    reason("NoSuchNetwork", "Service", "condition False",
        "Annotation network names a network that is on no NIC which all nodes have.",
        "Attach the network to all machines, or name another one."),
    reason("NoSuchPrimary", "Service", "condition False",
        "The Service whose address is to be shared does not exist, or is no load balancer.",
        "Name a Service that has an address of its own."),
    reason("PrimaryWithoutAddress", "Service", "condition False",
        "The Service whose address is to be shared has no address yet.",
        "Read the condition of that Service."),
    reason("SharingNotAgreed", "Service", "condition False",
        "The Service whose address is to be shared is in another namespace and has not agreed.",
        "Annotate that Service with share-with-namespaces, or share within the namespace."),
    reason("PortTaken", "Service", "condition False",
        "Another Service uses the same protocol and port of the shared address.",
        "Choose another port, or an address of its own."),
    reason("BadClusterName", "Service", "condition False",
        "No object on Harvester can be named after this cluster.",
        "Correct global.cattle.clusterName; the message says what is accepted."),
    reason("NameTaken", "Service", "condition False",
        "The object of this name on Harvester belongs to another Service, usually of a cluster with the same name.",
        "Rename the younger cluster with identity rename."),
    reason("IPAMChanged", "Service", "warning",
        "Annotation ipam was changed after the Service had its address; Harvester does not change it.",
        "Set the annotation back, or delete the Service and create it again."),
    reason("NetworkChanged", "Service", "warning",
        "Annotation network was changed after the load balancer was made; Harvester does not change it.",
        "Set the annotation back, or delete the Service and create it again."),
    reason("NetworkNotKept", "Service", "warning",
        "Harvester booked an address for another network than the annotation names; up to 1.8 it always chooses \
         by itself.",
        "Remove annotation network, or upgrade Harvester, and create the Service again."),
    reason("AddressNotAsAsked", "Service", "warning",
        "Harvester booked, or the DHCP server gave, another address than annotation ip asks for; that one is served.",
        "Remove the annotation, name a pool of one address, reserve it on the DHCP server, or use static."),
    reason("SingleStackOnly", "Service", "warning",
        "The Service asks for two address families, and Harvester books one address.",
        "Set ipFamilyPolicy SingleStack, or ipam dhcp with a server of each family."),
    reason("UnknownAnnotation", "Service", "warning",
        "An annotation looks like one of this program, and no program reads it.",
        "Correct the key to the one that the message names, or remove it."),
    reason("AnnotationIgnored", "Service", "Warning",
        "An annotation has no effect on this Service; the message names it and why.",
        "Remove the annotation, or correct what the message names."),
    reason("QuorumAtRisk", "Node", "Warning",
        "A Harvester host carries so many control plane machines that the API stops with it.",
        "Move one of the named VMs to another host and keep them apart with a pod anti-affinity."),
    reason("NodeDrainStarted", "Node", "Normal",
        "The node was cordoned and is being emptied, because its machine is about to be shut down.",
        "Nothing."),
    reason("NodeUncordoned", "Node", "Normal",
        "The machine is back, and the node accepts pods and addresses again.",
        "Nothing."),
    reason("NodeDrained", "Node", "Normal",
        "The node was emptied before its machine is shut down for the upgrade of its Harvester host.",
        "Nothing."),
    reason("NodeDrainIncomplete", "Node", "Warning",
        "The node was not emptied before its machine is shut down; the message names the pods that stay.",
        "Look at their disruption budgets, or run more replicas."),
    reason("NodeStaysCordoned", "Node", "Warning",
        "A node that was cordoned for the upgrade of its Harvester host stays so: it is not known whether its machine \
         runs.",
        "Look at what the message names; if you know that the machine runs: kubectl uncordon the node."),
    reason("Terminating", "Service", "phase",
        "Harvester deletes the former load balancer of the Service first.",
        "Wait."),
    reason("Allocating", "Service", "phase", "Harvester books an address.", "Wait."),
    reason("Booking", "Service", "phase",
        "Harvester has not finished the booking; a deletion now would leak the address.",
        "Wait."),
    reason("WaitingForTurn", "Service", "phase",
        "Other Services are first; Harvester books one address at a time.",
        "Wait."),
    reason("MachineNotKnown", "Node", "plan",
        "The machine of the Node cannot be told yet; the message says what is missing.",
        "Do what the message says."),
    reason("Failed", "Service", "plan",
        "A request that the controller would send first fails; the message has the error.",
        "Correct what the message names."),
    reason("EnsuringLoadBalancer", "Service", "Normal",
        "The cloud controller begins to get an address for the Service.",
        "Nothing."),
    reason("EnsuredLoadBalancer", "Service", "Normal", "The Service has its address.", "Nothing."),
    reason("DeletingLoadBalancer", "Service", "Normal",
        "The cloud controller begins to delete the load balancer.",
        "Nothing."),
    reason("DeletedLoadBalancer", "Service", "Normal",
        "The load balancer is gone, and its address is free.",
        "Nothing."),
    reason("HandedOverLoadBalancer", "Service", "Normal",
        "The next Service of the share-group has the address now.",
        "Nothing."),
    reason("AbandonedLoadBalancer", "Service", "Warning",
        "The load balancer stays on Harvester, because annotation abandon says so.",
        "Delete the object on Harvester when it answers again and no Service has its address."),
    reason("StillSharedLoadBalancer", "Service", "Warning",
        "The load balancer of a Service that was made again stays on Harvester, because others still share its \
         address.",
        "Delete the object on Harvester when no Service has its address any more."),
    reason("SyncLoadBalancerFailed", "Service", "Warning",
        "The Service cannot have what it asks for; the message has the reason and the remedy.",
        "Do what the message says; the condition has the same reason as one word."),
    reason("DeleteLoadBalancerFailed", "Service", "Warning",
        "The load balancer of a Service that is gone cannot be deleted.",
        "Do what the message says; it is tried again."),
    reason("ServiceVanished", "Service", "Warning",
        "A Service is gone with its finalizer on, or a ClusterIP again, as after a restore of etcd; its load \
         balancer stays on Harvester.",
        "Nothing if the restore is to stay: the load balancer is reported as garbage. See docs/backup.md."),
    reason("UndoneByOthers", "Service, Node, ConfigMap", "Warning, condition False, warning",
        "Another program undoes what this program writes on a Service, a load balancer, a Node, the record or the NAD \
         mapping.",
        "Tell the program that the message names to leave alone what the message lists."),
    reason("AddressAnnounced", "Service", "Normal",
        "A node announces the address from now on; the message says why.",
        "Nothing."),
    reason("AddressConflict", "Service", "Warning",
        "Another host, named by its MAC, uses or claims the address.",
        "Find that MAC on the switch and free the address; or exclude it from the pool, or name another static one."),
    reason("CannotAnnounce", "Service", "Warning",
        "No node can announce the address; the message names what keeps it from that.",
        "Correct what the message names on one node, or on the Service."),
    reason("NoHealthyNode", "Service", "Warning",
        "No node is fully well, and the least bad one announces the address.",
        "Repair what the message names on one node; it takes the address over."),
    reason("OwnerNotHeard", "Service", "Warning",
        "The owner renews its Lease, but the next node in line gets no answer from it, and leaves it the address.",
        "Check the uplink of the owner (port, cable, VLAN), and whether isolated ports keep the two nodes apart."),
    reason("NoLocalEndpoint", "Service", "Warning",
        "Policy Local is set, and the announcing node has no ready endpoint: traffic is dropped.",
        "See why no endpoint is ready, or use policy Cluster."),
    reason("AddressNotServed", "Service", "Warning",
        "Another node that asks the address as a client would gets no answer, or is refused, three times in a row.",
        "Do what the message says: look at kube-proxy on the owner, at endpoints, at policies and packet filters."),
    reason("AddressServedAgain", "Service", "Normal",
        "The address accepts connections again.",
        "Nothing."),
    reason("DHCPNoAnswer", "Service", "Warning",
        "No DHCP server answers on the network of the interface.",
        "Check the server or relay of that VLAN, and that the port lets a second MAC of the machine through."),
    reason("DHCPRefused", "Service", "Warning",
        "The DHCP server refuses the address.",
        "Wait; if it stays, correct the reservations of the server."),
    reason("DHCPOtherAddress", "Service", "Warning",
        "The DHCP server offers another address than the one asked for.",
        "Correct the reservations of the server, or remove the wish."),
    reason("DHCPAddressChanged", "Service", "Normal",
        "The DHCP server has given another address than before.",
        "Change the records of DNS that name it."),
    reason("DHCPLeaseLost", "Service", "Warning",
        "The DHCP lease has ended, and the address is withdrawn.",
        "Check the DHCP server."),
    reason("DHCPTrouble", "Service", "Warning",
        "The DHCP server sends replies that cannot be used; the message says why.",
        "Check the DHCP server."),
    reason("Synced", "Node", "Normal", "The Node is initialised from its machine.", "Nothing."),
    reason("NodeInitializationFailed", "Node", "Warning",
        "The Node cannot be initialised; the message names the step that is missing.",
        "Do what the message says; it is tried again."),
    reason("DeletingNode", "Node", "Normal",
        "The machine of the Node was proven absent twice, and the Node is deleted.",
        "Nothing."),
    reason("NodeKept", "Node", "Warning",
        "The Node has no machine by its provider ID, but another machine that runs is probably its machine.",
        "Delete the Node if its machine is gone for good; docs/backup.md says what follows."),
    reason("DeletingNodeFailed", "Node", "Warning",
        "The Node of an absent machine cannot be deleted.",
        "Grant the right to delete nodes, or delete the Node."),
    reason("NodesNotDeleted", "Node", "Warning",
        "More than three Nodes, over a third of all, seem to have lost their machines within a minute; none is \
         deleted.",
        "Check the cloud-config; if it is true, delete the Nodes with the command in the message."),
    reason("NodeSilent", "Node, Pod", "Warning on the Node, condition Ready False on its pods",
        "A node has fallen silent, and its pods left their Services; the message has the evidence.",
        "See why the node is away: power, network, host. docs/node-loss.md says what was written."),
    reason("NodeHeardAgain", "Node", "Normal", "A node that was silent is heard again, and its pods are back in \
        their Services.", "Nothing."),
    reason("HarvesterHostMaintenance", "Node", "condition",
        "The host below the machine is being upgraded or maintained.",
        "Wait, or see the progress in Harvester."),
    reason("HostUpgradePending", "Node", "maintenance False", "The host waits for its upgrade.", "Wait."),
    reason("HostPreDraining", "Node", "maintenance True, Normal",
        "The host is being emptied: the machine is about to move or to be shut down.",
        "Wait."),
    reason("VMLiveMigrating", "Node", "maintenance True, Normal",
        "The machine moves to another host while it runs.",
        "Wait."),
    reason("VMShutDownForUpgrade", "Node", "maintenance True, Warning",
        "The machine was shut down for the upgrade of its host.",
        "Wait. If it stays off after the upgrade, do what Harvester says of that machine."),
    reason("HostRebooting", "Node", "maintenance True, Normal", "The host is being changed or restarts.", "Wait."),
    reason("VMRestoring", "Node", "maintenance True, Normal",
        "The machine is on its way up after the upgrade of its host.",
        "Wait."),
    reason("HostUpgradePaused", "Node", "maintenance True, Normal",
        "The administrator of Harvester has paused the upgrade of the host.",
        "Wait, or see the upgrade in Harvester."),
    reason("HostUpgradeFailed", "Node", "maintenance True, Warning",
        "The upgrade of the host has failed.",
        "See the object of the upgrade on Harvester for the reason."),
    reason("HostUpToDate", "Node", "maintenance False, Normal", "No upgrade touches the host now.", "Nothing."),
    reason("LeaderElection", "Lease", "Normal", "Another replica of the cloud controller leads.", "Nothing."),
    reason("HarvesterUnreachable", "Lease", "Warning",
        "Harvester has not answered for 30 s; addresses that exist go on working.",
        "Check the way from the node to the API server of Harvester."),
    reason("HarvesterReachable", "Lease", "Normal", "Harvester answers again.", "Nothing."),
    reason("HarvesterCredentialsRefused", "Lease", "Warning",
        "Harvester refuses the token of the cloud-config.",
        "Put a new token into the Secret or file; no restart is needed."),
    reason("HarvesterCredentialsAccepted", "Lease", "Normal",
        "Harvester accepts the token of the cloud-config.",
        "Nothing."),
    reason("CloudConfigInvalid", "Lease", "Warning",
        "The new content of the cloud-config cannot be used; the former one stays in use.",
        "Correct what the message names in the Secret or file."),
    reason("CloudConfigReloaded", "Lease", "Normal", "The new content of the cloud-config is in use.", "Nothing."),
    reason("AnnouncerBack", "ConfigMap", "Normal", "Addresses of Services are announced again.", "Nothing."),
    reason("GarbageLoadBalancers", "ConfigMap", "Warning",
        "Harvester has load balancers of this cluster that no Service has.",
        "Look at the list in the message; --garbage-collection=delete deletes them."),
    reason("GarbageDeleted", "ConfigMap", "Normal", "A load balancer that no Service has was deleted.", "Nothing."),
    reason("RestoreSuspected", "ConfigMap", "Warning",
        "Services vanished with finalizers on, as after a restore of etcd; no garbage is collected for 24 h, nor for \
         1 h after a start.",
        "Nothing, or run identity confirm when no other snapshot is to follow. See docs/backup.md."),
    reason("RestoreSuspicionEnded", "ConfigMap", "Normal",
        "No restore of etcd is suspected any more; garbage is collected as --garbage-collection says.", "Nothing."),
    reason("GarbageNotDeleted", "ConfigMap", "Warning",
        "More than a third of all load balancers of this cluster have no Service; none of them is deleted.",
        "Check that the cluster shows all its Services; if it is true, run identity confirm."),
    reason("NoGarbage", "ConfigMap", "Normal",
        "Harvester has no load balancer of this cluster without a Service.",
        "Nothing."),
    reason("ClusterNameNotChanged", "ConfigMap", "Warning",
        "The flag --cluster-name differs from the name of this cluster on Harvester; the latter stays in use.",
        "Set global.cattle.clusterName back, or run identity rename."),
    reason("ClusterNameChanged", "ConfigMap", "Normal",
        "The cluster has a new name on Harvester; load balancers that exist keep theirs.",
        "Nothing."),
    reason("ClusterNameRefused", "ConfigMap", "Warning",
        "The name asked for or written in the record cannot name objects, or a copy or the original has it; it is \
         not followed.",
        "Choose a name that the message accepts."),
    reason("SafeMode", "ConfigMap", "Warning",
        "Two facts about this cluster contradict each other, and nothing is changed.",
        "Do what the message says: it names what to correct, or the command."),
    reason("SafeModeEnded", "ConfigMap", "Normal", "The facts about this cluster agree again.", "Nothing."),
    reason("IdentityConfirmed", "ConfigMap", "Normal",
        "An administrator has said which cluster this is, and it is followed.",
        "Nothing."),
    reason("MachinesNotSeen", "ConfigMap", "reason of SafeMode",
        "No machine of this cluster is in the namespace of the cloud-config.",
        "Put the right cloud-config in its place. If the machines were moved or restored, run identity confirm."),
    reason("WrongNamespace", "ConfigMap", "reason of SafeMode",
        "The cloud-config names another namespace than the record, and no machine of this cluster is there.",
        "Put the right cloud-config in its place. If the machines were moved or restored, run identity confirm."),
    reason("WrongHarvester", "ConfigMap", "reason of SafeMode",
        "The cloud-config names another Harvester than the record, and no machine of this cluster is there.",
        "Put the right cloud-config in its place. If the machines were moved or restored, run identity confirm."),
    reason("MachinesReplaced", "ConfigMap", "reason of SafeMode",
        "Every machine that the record names is gone, and other machines run this cluster.",
        "Run identity confirm after a restore, identity rename NAME --copy for a copy."),
    reason("AnotherClusterName", "ConfigMap", "reason of SafeMode",
        "The machines belong to a cluster of another name.",
        "Run identity rename NAME --copy for a copy, without --copy for a new name. Else correct --cluster-name and \
         the label."),
    reason("RecordOfAnotherCluster", "ConfigMap", "reason of SafeMode",
        "The record belongs to another cluster and was copied here.",
        "Take the record out of what copies it, then run the command in the message."),
    reason("IdentityNotKnown", "ConfigMap, Lease", "reason of a hold",
        "The cloud controller waits for a kubelet of the machines that the record names, or has not judged yet what \
        another one has left.",
        "Wait up to 5 minutes; see docs/backup.md."),
    reason("Paused", "ConfigMap", "reason of a hold",
        "The cloud controller, or this Service, is paused by a flag, a key or an annotation.",
        "Remove flag --paused, key paused or annotation paused."),
    reason("HostUpgradeStarted", "Service", "Normal", "An upgrade of the hosts of Harvester has begun.", "Nothing."),
    reason("HostUpgradeReport", "ConfigMap", "Normal, Warning",
        "An upgrade of the hosts of Harvester is over, or has failed; the message says what it did to the nodes.",
        "Look at the upgrade on Harvester if the message says that it failed."),
    reason("HostUpgradeStale", "ConfigMap", "Warning",
        "An upgrade of the hosts of Harvester, or a silence of its API, shows no progress: nothing waits for it.",
        "See the upgrade in Harvester, or what keeps its API from answering."),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Subject first, one thought, plain words, and a remedy that begins with what to do.
    #[test]
    fn texts_keep_to_a_style() {
        const REMEDIES: [&str; 36] = [
            "Nothing", "Wait", "See", "Check", "Restart", "Read", "Make", "Correct", "Widen", "Run", "Delete", "Name",
            "Set", "Attach", "Annotate", "Choose", "Rename", "Remove", "Do", "Tell", "Find", "Repair", "Change",
            "Grant", "Put", "Look", "Use", "Free", "Raise", "Share", "Install", "Upgrade", "Add", "Move", "Stop",
            "Take",
        ];
        const SUBJECTS: [&str; 24] = [
            "A",
            "An",
            "The",
            "No",
            "Another",
            "Other",
            "Two",
            "Every",
            "More",
            "Harvester",
            "Hosts",
            "Annotation",
            "Policy",
            "Addresses",
            "Services",
            "Nodes",
            "Machines",
            "Announcers",
            "Events",
            "Pods",
            "Clients",
            "Somebody",
            "Each",
            "All",
        ];
        let mut seen = BTreeSet::new();
        for reason in REASONS {
            let first = |text: &'static str| text.split([' ', '.', ';', ',']).next().unwrap_or_default();
            assert!(seen.insert(reason.word), "{} stands here twice", reason.word);
            assert!(SUBJECTS.contains(&first(reason.means)), "the subject comes first: {reason:?}");
            assert!(REMEDIES.contains(&first(reason.remedy)), "the remedy begins with what to do: {reason:?}");
            for text in [reason.means, reason.remedy] {
                assert!(text.ends_with('.') && text.len() <= 130, "{} characters: {text}", text.len());
                for limp in ["mend", "whoever", "whom", "living", "somebody", "etc.", "!"] {
                    assert!(!text.contains(limp), "{limp:?}: {text}");
                }
            }
            let trouble = reason.kind.contains("Warning") || reason.kind.contains("condition False");
            assert!(!trouble || reason.remedy != "Nothing.", "a trouble has a remedy: {reason:?}");
        }
        assert!(seen.len() > 70);
    }

    /// Words of the same form in the code that no object has as its reason: kinds, types, values.
    const OTHERS: [&str; 20] = [
        "AnswerLost",
        "ConfigMap",
        "ContainersReady",
        "DHCPv6",
        "DaemonSet",
        "ExternalIP",
        "HostUpgrade",
        "IPv4",
        "IPv6",
        "InternalIP",
        "LoadBalancer",
        "LoadBalancerReady",
        "LoadBalancerWarning",
        "NoExecute",
        "NoSchedule",
        "PreferNoSchedule",
        "RequireDualStack",
        "RerunOnFailure",
        "UpgradePlan",
        "WriteLost",
    ];

    /// A word in quotes with two capital letters or more, as almost every reason has.
    fn words(source: &str) -> impl Iterator<Item = &str> {
        let is_word = |text: &&str| {
            text.starts_with(|c: char| c.is_ascii_uppercase())
                && text.chars().all(|c| c.is_ascii_alphanumeric())
                && text.chars().filter(char::is_ascii_uppercase).count() > 1
                && text.contains(|c: char| c.is_ascii_lowercase())
        };
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.flat_map(|line| line.split('"')).filter(is_word)
    }

    fn collect(directory: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().contains("test")) {
                continue;
            }
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.extend(words(&std::fs::read_to_string(path).unwrap()).map(str::to_owned));
            }
        }
    }

    #[test]
    fn every_reason_in_the_code_is_listed() {
        let mut found = BTreeSet::new();
        for program in ["announcer-core", "cloud-provider", "harvester-provider"] {
            collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(program).join("src"), &mut found);
        }
        for known in ["NodeDrainStarted", "WrongNamespace", "VMLiveMigrating", "PoolExhausted", "CannotAnnounce"] {
            assert!(found.contains(known), "{known} is not found any more");
        }
        let unknown = |word: &&String| find(word).is_none() && !OTHERS.contains(&word.as_str());
        let missing: Vec<&String> = found.iter().filter(unknown).collect();
        assert!(missing.is_empty(), "neither a reason in the list, nor one of the other words: {missing:?}");
    }
}
