-- Idle workers are woken one by one: a notification that all of them hear costs a large fleet more than the claim. Each
-- listens on a channel of its own, named by the process id of its listening session. While it has free slots and nothing
-- to do, the session by which it claims holds an advisory lock of the same number, idle_key: everybody sees that at once,
-- it leaves no dead rows, and it ends with the session.

-- This session listens from now on, for a worker that serves these types (NULL: every one). Answers its number, for claim.
CREATE OR REPLACE FUNCTION listen_alone(p_types text[] DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM listeners l WHERE l.pid IN (
        SELECT o.pid FROM listeners o WHERE NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = o.pid) FOR UPDATE SKIP LOCKED
    );
    INSERT INTO listeners AS l (pid, types) VALUES (pg_backend_pid(), p_types) ON CONFLICT (pid) DO UPDATE SET types = excluded.types;
    EXECUTE format('LISTEN %I', current_schema() || '_ready_' || pg_backend_pid());
    RETURN pg_backend_pid();
END $$;

CREATE OR REPLACE FUNCTION idle_key(p_pid integer) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT lock_key() + 1000 + p_pid $$;

-- From now on this session's worker is idle, and listens by p_pid; NULL: it is not idle any more. False where somebody
-- looks at that very lock just now: try again.
CREATE OR REPLACE FUNCTION be_idle(p_pid integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    was integer := nullif(current_setting('taskgate.idle', true), '')::integer;
BEGIN
    IF was IS NOT DISTINCT FROM p_pid THEN
        RETURN true;
    END IF;
    IF was IS NOT NULL THEN
        PERFORM pg_advisory_unlock(idle_key(was)), set_config('taskgate.idle', '', false);
    END IF;
    IF p_pid IS NULL THEN
        RETURN true;
    END IF;
    IF NOT pg_try_advisory_lock(idle_key(p_pid)) THEN
        RETURN false;
    END IF;
    PERFORM set_config('taskgate.idle', p_pid::text, false);
    RETURN true;
END $$;

-- Whether a worker that listens by this number is idle just now: whoever is, holds the lock.
CREATE OR REPLACE FUNCTION is_idle(p_pid integer) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT CASE WHEN pg_try_advisory_lock_shared(idle_key(p_pid)) THEN NOT pg_advisory_unlock_shared(idle_key(p_pid)) ELSE true END
$$;

-- Wakes up to p_count idle workers for each of these types, and one more. The same ones again and again, since those that
-- worked last are the fastest; the one more at random, since one that is frozen must not be relied on: its notification
-- says `spare`, and it does well to look a few milliseconds later.
CREATE OR REPLACE FUNCTION wake_idle(p_types text[], p_count integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    ty text;
    pids integer[];
    n integer;
    i integer;
    chosen integer;
    start integer;
BEGIN
    FOREACH ty IN ARRAY coalesce(p_types, '{}') LOOP
        pids := ARRAY(SELECT l.pid FROM listeners l WHERE l.types IS NULL OR ty = ANY (l.types) ORDER BY l.pid);
        n := cardinality(pids);
        i := 1;
        chosen := 0;
        WHILE i <= n AND chosen < p_count LOOP
            IF is_idle(pids[i]) THEN
                PERFORM pg_notify(current_schema() || '_ready_' || pids[i], '');
                chosen := chosen + 1;
            END IF;
            i := i + 1;
        END LOOP;
        n := n - i + 1;  -- that may be the one more
        start := floor(random() * n);
        FOR k IN 0 .. n - 1 LOOP
            IF is_idle(pids[i + (start + k) % n]) THEN
                PERFORM pg_notify(current_schema() || '_ready_' || pids[i + (start + k) % n], 'spare');
                EXIT;
            END IF;
        END LOOP;
    END LOOP;
END $$;
