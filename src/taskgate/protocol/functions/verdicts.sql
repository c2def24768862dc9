-- What became of settle calls that changed nothing: `already` when this very token settled the task before
-- (the answer was lost, the write was not); `busy` when the task is still yours but somebody else holds its row:
-- ask again soon; else `stale`.
CREATE OR REPLACE FUNCTION verdicts(p_ids text[], p_tokens bigint[], p_done text[])
RETURNS TABLE (task_id text, token bigint, outcome text)
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT g.id, g.token,
           CASE WHEN EXISTS (SELECT FROM tasks t WHERE t.task_id = g.id AND t.settled_token = g.token)
                THEN CASE WHEN g.id = ANY (coalesce(p_done, '{}')) THEN 'done' ELSE 'already' END
                WHEN EXISTS (SELECT FROM task_attempts a WHERE a.task_id = g.id AND a.token = g.token
                             AND a.outcome IN ('completed', 'failed', 'retried', 'released')) THEN 'already'
                WHEN EXISTS (SELECT FROM tasks t WHERE t.task_id = g.id AND t.claim_token = g.token
                             AND t.status || '' = 'running') THEN 'busy'
                ELSE 'stale' END
    FROM unnest(p_ids, p_tokens) WITH ORDINALITY AS g (id, token, ord)
    ORDER BY g.ord
$$;
