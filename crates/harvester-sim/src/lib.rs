//! Stand-in for the Harvester side: pools, LoadBalancer controller, webhooks, virtual machines.
