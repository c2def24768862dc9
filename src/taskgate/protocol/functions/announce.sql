-- Directory and notifications. Nobody depends on the latter: every waiter polls as well.

-- Says that p_tasks tasks came to these flows: enters those in the directory that are not in it, and tells idle workers,
-- if any waits for it: all of them where one has no channel of its own, else as many as there are tasks, and one more.
-- (A few, of many tasks: a worker that leaves some over wakes others.) Call it in the transaction that wrote the tasks.
--
-- Why no flow is lost: an entry is deleted only by a claim that holds lock_key() + 1 exclusively, until its commit,
-- and finds nothing pending. Here the lock is taken first, and the directory read in a later statement, so with a
-- younger snapshot. If the deletion came before, it is committed and seen here, and the entry is written anew. If it
-- comes later, it comes after our commit, and sees our task. (Two writers that enter the same flow at once do not see
-- each other, and do not wait for each other: doubles are harmless.) The same lock tells a worker that goes idle that
-- no insert that skipped its notification is still uncommitted.
CREATE OR REPLACE FUNCTION announce_ready(p_flows flows[], p_tasks integer DEFAULT 1) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(lock_key() + 1);
    INSERT INTO flows (id, task_type, priority, tenant, upstream, model, since)
    SELECT DISTINCT f.id, f.task_type, f.priority, f.tenant, f.upstream, f.model, clock_timestamp()
    FROM unnest(p_flows) AS f
    WHERE NOT EXISTS (SELECT FROM flows d WHERE d.id = f.id)
       OR current_setting('transaction_isolation') <> 'read committed';  -- there the snapshot is older than the lock
    IF pg_sequence_last_value('waiting_workers_until') > epoch_ms(clock_timestamp()) THEN
        PERFORM pg_notify(current_schema() || '_ready', '');
    ELSIF pg_sequence_last_value('waiting_listeners_until') > epoch_ms(clock_timestamp()) THEN
        PERFORM wake_idle(ARRAY(SELECT DISTINCT f.task_type FROM unnest(p_flows) AS f), least(p_tasks, 8));
    END IF;
END $$;

-- The same for tasks that this transaction has put back into the queue; those that are not pending do not count.
CREATE OR REPLACE FUNCTION announce_tasks(p_ids text[]) RETURNS void
LANGUAGE sql VOLATILE SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    SELECT announce_ready(array_agg(ROW (d.flow, d.task_type, d.priority, d.tenant, d.upstream, d.model, d.since)::flows), cardinality(p_ids))
    FROM (SELECT DISTINCT t.flow, t.task_type, t.priority, t.tenant, t.upstream, t.model, NULL::timestamptz AS since
          FROM tasks t WHERE t.task_id = ANY (p_ids) AND t.status || '' = 'pending' AND t.flow IS NOT NULL) AS d
    HAVING count(*) > 0
$$;

-- Tells workers that wait at a limit that there is room, if any waits for it.
CREATE OR REPLACE FUNCTION announce_room() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    IF pg_sequence_last_value('waiting_room_until') > epoch_ms(clock_timestamp()) THEN
        PERFORM pg_notify(current_schema() || '_ready', '');
    END IF;
END $$;

-- Tells those who wait for results that these tasks are final: ids, comma separated, at most 7 kB a notice.
CREATE OR REPLACE FUNCTION announce_done(p_ids text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    IF p_ids IS NULL OR coalesce(pg_sequence_last_value('waiting_clients_until'), 0) <= epoch_ms(clock_timestamp()) THEN
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

-- Raises a flag: somebody waits for notifications until then.
CREATE OR REPLACE FUNCTION wait_until(p_flag regclass, p_until timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE before bigint := pg_sequence_last_value(p_flag);
BEGIN
    IF before IS NULL OR before < epoch_ms(p_until) - 10000 THEN  -- it costs a write
        PERFORM setval(p_flag, epoch_ms(p_until));
    END IF;
END $$;
