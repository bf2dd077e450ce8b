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
