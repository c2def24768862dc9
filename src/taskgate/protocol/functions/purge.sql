-- Deletes up to p_batch final tasks whose time has come, with their attempts. One purger at a time; rows that
-- others hold are left for later, and no lock is held that claim waits for. Call again while it answers p_batch.
CREATE OR REPLACE FUNCTION purge(p_batch integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE purged integer;
BEGIN
    IF NOT pg_try_advisory_xact_lock(lock_key() + 2) THEN
        RETURN 0;
    END IF;
    WITH old AS (
        SELECT t.task_id FROM tasks t
        WHERE t.expires_at IS NOT NULL AND t.expires_at < clock_timestamp() AND t.status IN ('completed', 'failed')
        ORDER BY t.expires_at LIMIT p_batch FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM tasks t USING old WHERE t.task_id = old.task_id RETURNING 1
    )
    SELECT count(*) INTO purged FROM gone;
    DELETE FROM workers WHERE seen_at < clock_timestamp() - interval '1 day';
    RETURN purged;
END $$;
