-- Workers that listen on a channel of their own, so that idle ones are woken one by one; see listeners.sql.
-- depends: 0007_idempotency

CREATE TABLE IF NOT EXISTS listeners (
    pid   integer PRIMARY KEY, -- of the session that listens
    types text[] -- that the worker serves; NULL: every one
);

-- Until when one of them waits: a sequence, as its fellows in 0002_state are.
CREATE SEQUENCE IF NOT EXISTS waiting_listeners_until CACHE 1 START 1;

-- Earlier forms of functions that have other parameters now.
DROP FUNCTION IF EXISTS
    claim(text, integer, bigint[], interval, text[], integer), claim(text, integer, bigint[], interval, text[], integer, boolean),
    claim(text, integer, bigint[], interval, text[], integer, boolean, integer),
    running_now(text, bigint[], timestamptz, claim_ledger), announce_ready(flows[]);
