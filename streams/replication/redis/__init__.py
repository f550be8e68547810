"""Following over Redis publish/subscribe, as current Synapse speaks the protocol."""
