"""Events of local users: composed, signed, stored."""
