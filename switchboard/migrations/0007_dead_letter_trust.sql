-- How a dead letter's message was verified, and where it came from: replayed, its event says that, and not what its
-- adapter does today. NULL in rows from before, of which nobody knows it.
ALTER TABLE dead_letters
    ADD COLUMN family text CHECK (family IN ('queue', 'webhook')),
    ADD COLUMN trust_mode text CHECK (trust_mode IN ('queue', 'signed', 'token', 'open')),
    ADD COLUMN verified boolean,
    ADD COLUMN source_ip inet;
