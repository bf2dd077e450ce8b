-- ack = "complete": entries that are stored, and acknowledged at their source only when their todo has ended.

CREATE TABLE pending_acks (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    adapter    text NOT NULL,
    handle     text NOT NULL,
    todo_id    bigint NOT NULL,
    ready      boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX idx_pending_acks_handle ON pending_acks (adapter, handle);
CREATE INDEX idx_pending_acks_todo ON pending_acks (todo_id) WHERE NOT ready;
CREATE INDEX idx_pending_acks_ready ON pending_acks (adapter, id) WHERE ready;

-- A trigger, so that a todo which any program ends, with any statement, lets its entry go.
CREATE FUNCTION switchboard_todo_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE pending_acks SET ready = true WHERE todo_id = OLD.id AND NOT ready;
    RETURN NULL;
END
$$;

CREATE TRIGGER todo_ended AFTER UPDATE OF state ON todos FOR EACH ROW
    WHEN (NEW.state IN ('done', 'failed') AND OLD.state NOT IN ('done', 'failed'))
    EXECUTE FUNCTION switchboard_todo_ended();

CREATE FUNCTION switchboard_todos_truncated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE pending_acks SET ready = true WHERE NOT ready;
    RETURN NULL;
END
$$;

CREATE TRIGGER todos_truncated AFTER TRUNCATE ON todos FOR EACH STATEMENT
    EXECUTE FUNCTION switchboard_todos_truncated();

CREATE TRIGGER todo_deleted AFTER DELETE ON todos FOR EACH ROW
    WHEN (OLD.state NOT IN ('done', 'failed'))
    EXECUTE FUNCTION switchboard_todo_ended();
