CREATE TABLE upkeep (job text PRIMARY KEY, last_started_at timestamptz, last_succeeded_at timestamptz, last_duration_seconds double precision, counts jsonb NOT NULL DEFAULT '{}');
