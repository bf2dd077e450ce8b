-- Who reads each adapter, as the worker processes say themselves every few seconds.

CREATE TABLE consumers (
    process         text NOT NULL,
    adapter         text NOT NULL,
    begun_at        timestamptz NOT NULL DEFAULT now(),
    -- The last time that it said anything: its thread turns, and the ledger takes what it writes.
    seen_at         timestamptz NOT NULL DEFAULT now(),
    -- The last time that the source answered a read.
    polled_at       timestamptz,
    -- Since when the ledger has been storing the oldest batch that it has not stored; NULL where there is none.
    storing_since timestamptz,
    -- Another process reads this source, which only one may.
    standby         boolean NOT NULL DEFAULT false,
    last_error      text,
    last_error_at   timestamptz,
    PRIMARY KEY (process, adapter)
) WITH (
    -- Each row is written anew all the time: there is room for it on its page, no index is touched (HOT), and no vacuum
    -- has to keep up.
    fillfactor = 20
);
