-- What vending an endpoint's credential, and taking it back, needs.

-- A credential is an endpoint's, so that what it opens can be seen and taken back by itself. An agent has none: the
-- columns were never written, and a hash that opens nothing is not kept.
ALTER TABLE agents
    DROP COLUMN token_hash,
    DROP COLUMN token_prefix;

-- What was made before may do nothing until it is vended anew. queue stays for whoever reads it: nothing here does.
ALTER TABLE endpoints
    ADD COLUMN queues text[] NOT NULL DEFAULT '{}',
    ADD COLUMN verbs text[] NOT NULL DEFAULT '{}' CHECK (verbs <@ ARRAY['create']),
    ALTER COLUMN queue DROP NOT NULL;

-- What is revoked stays as a record, and its name is free again. The plain indexes are for the cascades.
ALTER TABLE agents DROP CONSTRAINT agents_owner_id_name_key;
CREATE UNIQUE INDEX idx_agents_name ON agents (owner_id, name) WHERE revoked_at IS NULL;
CREATE INDEX idx_agents_owner ON agents (owner_id);
ALTER TABLE endpoints DROP CONSTRAINT endpoints_agent_id_name_key;
CREATE UNIQUE INDEX idx_endpoints_name ON endpoints (agent_id, name) WHERE revoked_at IS NULL;
CREATE INDEX idx_endpoints_agent ON endpoints (agent_id);

UPDATE endpoints SET queues = ARRAY[queue];

-- One address is one person, however its letters' case. Which of two rows is the person only you can know.
DO $$
DECLARE
    clashes text;
BEGIN
    SELECT string_agg(same, '; ') INTO clashes
    FROM (SELECT string_agg(format('%s (id %s)', email, id), ', ' ORDER BY id) AS same
          FROM humans GROUP BY lower(email) HAVING count(*) > 1) AS clash;
    IF clashes IS NOT NULL THEN
        RAISE unique_violation USING MESSAGE = 'rows of humans differ in the case of their address alone, change or '
            'delete all but one of each: ' || clashes;
    END IF;
END $$;
UPDATE humans SET email = lower(email) WHERE email <> lower(email);
ALTER TABLE humans DROP CONSTRAINT humans_email_key;
CREATE UNIQUE INDEX idx_humans_email ON humans (lower(email));
