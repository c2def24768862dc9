-- Writes one task under an idempotency key. Answers as enqueue does, `done` or `exists`; or `replayed` with the id
-- of the task that the key stands for and its status; or `mismatch`: the key stands for another submission.
CREATE OR REPLACE FUNCTION enqueue_once(
    p_key text, p_fingerprint text, p_id text, p_type text, p_request text, p_keep_order boolean DEFAULT NULL,
    p_options text DEFAULT NULL, p_tenant text DEFAULT '', p_traceparent text DEFAULT NULL
) RETURNS TABLE (task_id text, outcome text, status text)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    id text := coalesce(p_id, new_task_id());
    kept record;
    written text;
BEGIN
    SELECT r.outcome, r.task_ids, r.statuses INTO kept FROM remember(p_tenant, ARRAY[p_key], ARRAY[p_fingerprint], ARRAY[id]) AS r;
    IF kept.outcome <> 'fresh' THEN
        RETURN QUERY SELECT kept.task_ids[1], kept.outcome, kept.statuses[1];
        RETURN;
    END IF;
    written := enqueue_one(id, p_type, p_request, p_keep_order, p_options, p_tenant, p_traceparent);
    IF written = 'exists' THEN  -- somebody else's task: the key must not stand for it
        DELETE FROM idempotency_keys k WHERE k.tenant = p_tenant AND k.key = p_key;
    END IF;
    RETURN QUERY SELECT id, written, 'pending';
END $$;
