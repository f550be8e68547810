"""One event as JSON: strict reading, canonical form, fields, hashes, signatures, redaction, the client's form."""
