-- Whether an attempt said that it would send a paid call, and nobody knows what became of it.
CREATE OR REPLACE FUNCTION is_ambiguous(p_id text, p_token bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT EXISTS (SELECT FROM task_attempts a WHERE a.task_id = p_id AND a.token = p_token
                   AND a.submit_intent_at IS NOT NULL AND a.operation IS NULL AND NOT a.ambiguous_retry)
$$;

-- Whether an attempt follows an operation at the provider that is paid for and not over: losing its worker costs no
-- attempt, for the next one goes on where it stood. (For a day: what kills every worker must come to an end.)
-- Resumed operations stand on the attempt that sent them, so the task's last one with an intent tells.
CREATE OR REPLACE FUNCTION is_followed(p_id text, p_now timestamptz) RETURNS boolean
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT coalesce((
        SELECT a.operation IS NOT NULL AND NOT a.operation ? 'closed' AND a.submit_intent_at > p_now - interval '1 day'
        FROM task_attempts a WHERE a.task_id = p_id AND a.submit_intent_at IS NOT NULL
        ORDER BY a.token DESC LIMIT 1
    ), false)
$$;
