-- Notifications. Nobody depends on them: every waiter polls as well.

-- Tells idle workers that tasks were inserted; says nothing when none waits for it. The shared lock lets a
-- worker that goes idle learn that no insert that skipped its notification is still uncommitted.
CREATE OR REPLACE FUNCTION announce_ready() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(lock_key() + 1);
    IF (SELECT last_value FROM waiting_workers_until) > epoch_ms(clock_timestamp()) THEN
        PERFORM pg_notify(current_schema() || '_ready', '');
    END IF;
END $$;

-- Tells those who wait for results that these tasks are final: ids, comma separated, at most 7 kB a notice.
CREATE OR REPLACE FUNCTION announce_done(p_ids text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    IF p_ids IS NULL OR (SELECT last_value FROM waiting_clients_until) <= epoch_ms(clock_timestamp()) THEN
        RETURN;
    END IF;
    PERFORM pg_notify(current_schema() || '_done', string_agg(i.id, ','))
    FROM (SELECT u.id, sum(octet_length(u.id) + 1) OVER (ORDER BY u.ord) / 7000 AS part
          FROM unnest(p_ids) WITH ORDINALITY AS u (id, ord)
          WHERE octet_length(u.id) < 900) AS i
    GROUP BY i.part;
END $$;

-- A client waits for results for the next p_seconds: completions shall notify.
CREATE OR REPLACE FUNCTION await_done(p_seconds double precision) RETURNS void
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT setval('waiting_clients_until', greatest((SELECT last_value FROM waiting_clients_until),
                  epoch_ms(clock_timestamp() + p_seconds * interval '1 second')))
$$;

CREATE OR REPLACE FUNCTION tasks_inserted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM announce_ready();
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER tasks_inserted AFTER INSERT ON tasks
    FOR EACH STATEMENT EXECUTE FUNCTION tasks_inserted();
