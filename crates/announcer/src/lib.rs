//! Who announces which virtual IP, and the adapters that make it so.
