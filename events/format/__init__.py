"""One event as JSON: strict decoding, canonical form, fields, hashes, signatures, redaction, the form for clients."""
