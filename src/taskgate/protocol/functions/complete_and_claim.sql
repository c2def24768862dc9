-- Complete, then claim, in one transaction: for a process that has more to claim only once its results are written. One
-- round trip and one commit instead of two of each.
-- Claims only where the claim lock is free at once: results do not wait in line for it. Nor does anything here wait for a
-- row (both skip what others hold), so it cannot deadlock, though it takes the rows first. It does not claim while tasks
-- of other types wait: in between, their workers have a chance of the room.
-- p_held: as for claim, with the tokens that are completed here, for one that cannot be is still running.
-- Answers a row for each result that is not `done` (see complete), then what claim answers; no row of that where it was
-- not tried. A process that goes idle calls claim itself: nobody listens for this one.
CREATE OR REPLACE FUNCTION complete_and_claim(
    p_ids text[], p_tokens bigint[], p_results text[],
    p_worker text, p_slots integer, p_held bigint[], p_lease interval, p_types text[], p_inline_bytes integer, p_ahead integer
) RETURNS TABLE (
    outcome text, next_due interval, task_id text, token bigint, task_type text, request text, attempt integer,
    max_attempts integer, timeout_seconds double precision, tenant text, metadata jsonb, checkpoint jsonb,
    traceparent text, waited interval, upstream text, model text, paid jsonb
)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT c.outcome, NULL::interval, c.task_id, c.token, NULL, NULL, NULL::integer, NULL::integer, NULL::double precision,
           NULL, NULL::jsonb, NULL::jsonb, NULL, NULL::interval, NULL, NULL, NULL::jsonb
    FROM complete(p_ids, p_tokens, p_results) AS c WHERE c.outcome <> 'done';
    IF NOT others_wait(coalesce(p_types, ARRAY(SELECT name FROM task_types))) AND pg_try_advisory_xact_lock(lock_key()) THEN
        RETURN QUERY SELECT * FROM claim(p_worker, p_slots, p_held, p_lease, p_types, p_inline_bytes, true, 0, p_ahead);
    END IF;
END $$;
