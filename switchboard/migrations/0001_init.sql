-- The ledger: what Switchboard keeps, and nothing it can look up elsewhere (SPEC-0004).
-- Times are timestamptz on the database's own clock.

CREATE TABLE humans (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    email        text NOT NULL UNIQUE,
    display_name text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE sessions (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    human_id     bigint NOT NULL REFERENCES humans (id) ON DELETE CASCADE,
    token_hash   bytea NOT NULL UNIQUE,
    source_ip    inet,
    user_agent   text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL
);
CREATE INDEX idx_sessions_human ON sessions (human_id);

CREATE TABLE agents (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner_id     bigint NOT NULL REFERENCES humans (id) ON DELETE CASCADE,
    name         text NOT NULL,
    scopes       text[] NOT NULL DEFAULT '{}',
    token_hash   bytea NOT NULL UNIQUE,
    token_prefix text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    revoked_at   timestamptz,
    UNIQUE (owner_id, name)
);

CREATE TABLE endpoints (
    id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    agent_id          bigint NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    name              text NOT NULL,
    queue             text NOT NULL,
    scopes            text[] NOT NULL DEFAULT '{}',
    source_types      text[] NOT NULL DEFAULT '{}',
    -- A credential is kept as its hash and a prefix that a person can recognise; never as itself.
    credential_hash   bytea NOT NULL UNIQUE,
    credential_prefix text NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT now(),
    expires_at        timestamptz,
    revoked_at        timestamptz,
    UNIQUE (agent_id, name)
);

CREATE TABLE adapters (
    name       text PRIMARY KEY,
    family     text NOT NULL CHECK (family IN ('queue', 'webhook')),
    trust_mode text NOT NULL CHECK (trust_mode IN ('queue', 'signed', 'token', 'open')),
    enabled    boolean NOT NULL DEFAULT true,
    config     jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- Identity keys, so that a batch's inserts stay on the right edge of the primary indexes.
CREATE TABLE events (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source        text NOT NULL,
    family        text NOT NULL CHECK (family IN ('queue', 'webhook')),
    event_type    text NOT NULL DEFAULT '',
    external_id   text,
    trust_mode    text NOT NULL CHECK (trust_mode IN ('queue', 'signed', 'token', 'open')),
    verified      boolean NOT NULL DEFAULT false,
    verify_detail text NOT NULL DEFAULT '',
    content_type  text NOT NULL DEFAULT '',
    headers       jsonb NOT NULL DEFAULT '{}',
    payload       bytea NOT NULL,
    payload_size  integer NOT NULL,
    source_ip     inet,
    received_at   timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX idx_events_dedupe ON events (source, external_id) WHERE external_id IS NOT NULL;
CREATE INDEX idx_events_source_time ON events (source, received_at DESC);

-- event_id has no foreign key: an event may be pruned before the terminal todo it made, and a cascading
-- SET NULL would need one more index that every insert pays for. A live todo's event is kept by prune itself.
CREATE TABLE todos (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue            text NOT NULL,
    source           text NOT NULL DEFAULT '',
    kind             text NOT NULL DEFAULT '',
    title            text NOT NULL,
    payload          jsonb NOT NULL DEFAULT '{}',
    event_id         bigint,
    idempotency_key  text,
    assignee         text,
    state            text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'claimed', 'done', 'failed')),
    owner            text,
    lease_expires_at timestamptz,
    attempt          integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    max_attempts     integer NOT NULL DEFAULT 5 CHECK (max_attempts > 0),
    result           jsonb,
    last_error       text,
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now(),
    claimed_at       timestamptz,
    completed_at     timestamptz
) WITH (
    -- A queue table turns over its rows: dead ones slow the claim long before the default thresholds act.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);
CREATE INDEX idx_todos_pending ON todos (queue, created_at) WHERE state = 'pending';
CREATE UNIQUE INDEX idx_todos_dedupe ON todos (queue, idempotency_key)
    WHERE idempotency_key IS NOT NULL AND state <> 'done' AND state <> 'failed';
CREATE INDEX idx_todos_completed ON todos (completed_at) WHERE state IN ('done', 'failed');

CREATE TABLE dead_letters (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    adapter         text NOT NULL,
    external_id     text,
    idempotency_key text NOT NULL,
    reason          text NOT NULL,
    detail          text NOT NULL,
    verify_detail   text NOT NULL DEFAULT '',
    content_type    text NOT NULL DEFAULT '',
    headers         jsonb NOT NULL DEFAULT '{}',
    payload         bytea NOT NULL,
    deliveries      integer NOT NULL DEFAULT 1,
    received_at     timestamptz NOT NULL DEFAULT now(),
    resolved_at     timestamptz,
    resolution      text CHECK (resolution IN ('replayed', 'discarded'))
);
-- A redelivery whose acknowledgement failed makes no second row; after it is resolved the same bytes may come again.
CREATE UNIQUE INDEX idx_dead_letters_dedupe
    ON dead_letters (adapter, idempotency_key, reason, sha256(payload)) WHERE resolved_at IS NULL;
CREATE INDEX idx_dead_letters_adapter ON dead_letters (adapter, received_at DESC);

CREATE TABLE settings (
    key   text PRIMARY KEY,
    value text NOT NULL
);
INSERT INTO settings (key, value) VALUES
    ('retention_max_age_days', '30'),
    ('retention_max_rows', '500000');
