"""The protocol over Redis publish/subscribe, as current Synapse speaks it."""
