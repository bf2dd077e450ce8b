-- What claiming, waiting and requeuing todos needs.

-- A waiting retry is claimed by nobody, with its lease at the time its backoff ends. As a column of its own, which stays
-- NULL while somebody holds the todo, that time can be indexed without a heartbeat ever touching an index.
ALTER TABLE todos ADD COLUMN retry_at timestamptz
    GENERATED ALWAYS AS (CASE WHEN owner IS NULL THEN lease_expires_at END) STORED;

CREATE INDEX idx_todos_waiting ON todos (queue, retry_at) WHERE state = 'claimed' AND owner IS NULL;
CREATE INDEX idx_todos_claimed ON todos (queue) WHERE state = 'claimed' AND owner IS NOT NULL;
-- Failures are rare among what has ended: who lists or retries them must not read all of it.
CREATE INDEX idx_todos_failed ON todos (id) WHERE state = 'failed';

-- Room on each page, so that a heartbeat's new row version stays on it (HOT).
ALTER TABLE todos SET (fillfactor = 85);
