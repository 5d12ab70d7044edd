//! Networks, control planes and nodes in namespaces, for tests and the demo.
