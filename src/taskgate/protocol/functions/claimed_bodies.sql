-- What an earlier attempt of this task saved last; NULL: nothing. (plpgsql: planned once a session.)
CREATE OR REPLACE FUNCTION last_checkpoint(p_id text) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (
        SELECT a.checkpoint FROM task_attempts a
        WHERE a.task_id = p_id AND a.checkpoint IS NOT NULL ORDER BY a.token DESC LIMIT 1
    );
END $$;

-- The last attempt of this task that said it would send a paid call, as claim answers it; NULL: none has.
CREATE OR REPLACE FUNCTION last_paid(p_id text) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (
        SELECT jsonb_build_object('intent_at', a.submit_intent_at, 'operation', a.operation, 'account', a.account, 'token', a.token)
        FROM task_attempts a WHERE a.task_id = p_id AND a.submit_intent_at IS NOT NULL ORDER BY a.token DESC LIMIT 1
    );
END $$;

-- The bodies of claimed tasks that claim left out of its answer; a task that is not held any more is missing.
CREATE OR REPLACE FUNCTION claimed_bodies(p_ids text[], p_tokens bigint[])
RETURNS TABLE (task_id text, token bigint, request text, metadata jsonb, checkpoint jsonb)
LANGUAGE sql STABLE SET search_path FROM CURRENT
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
    SELECT t.task_id, t.claim_token, coalesce(t.request_raw::text, t.request::text), t.metadata, last_checkpoint(t.task_id)
    FROM unnest(p_ids, p_tokens) AS g (id, token) JOIN tasks t ON t.task_id = g.id AND t.claim_token = g.token
    WHERE t.task_id = ANY (p_ids)
$$;
