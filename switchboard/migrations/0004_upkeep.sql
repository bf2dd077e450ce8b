-- What upkeep keeps of itself, and what it prunes by.

CREATE TABLE upkeep (
    job                   text PRIMARY KEY,
    last_succeeded_at     timestamptz NOT NULL,
    last_duration_seconds double precision NOT NULL,
    counts                jsonb NOT NULL DEFAULT '{}'
);

-- Dead letters are evidence: they stay longer than what became work.
INSERT INTO settings (key, value) VALUES
    ('dead_letters_max_age_days', '90'),
    ('dead_letters_max_rows', '100000')
ON CONFLICT (key) DO NOTHING;
CREATE INDEX idx_dead_letters_received ON dead_letters (received_at);

-- todos keep 0001's settings: 1,000 dead entries cost a claim 0.005 ms, so 0.02 bounds that to some 0.05 ms at a million
-- rows (0.2: 0.5 ms); a lower threshold gains nothing, as VACUUM bypasses the indexes below 2 % of pages
-- (docs/retention.md). A fifth of the events, PostgreSQL's default, is much to leave dead after each pass.
ALTER TABLE events SET (autovacuum_vacuum_scale_factor = 0.05);
