-- Gives rows of an adopted origin table what they lack, a batch at a time: an order of arrival (by created_at,
-- below every new one) and, for running ones, a token of their own. Answers the last id seen, NULL at the end.
CREATE OR REPLACE FUNCTION adopt(p_after text, p_batch integer) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE last_id text;
BEGIN
    IF NOT EXISTS (SELECT FROM tasks t WHERE t.tenant = '' AND t.seq IS NULL)
       AND NOT EXISTS (SELECT FROM tasks t WHERE t.status = 'running' AND t.request IS NOT NULL AND t.claim_token = 0) THEN
        RETURN NULL;
    END IF;
    WITH page AS (
        SELECT t.task_id FROM tasks t WHERE t.task_id > p_after ORDER BY t.task_id LIMIT p_batch
    ), put AS (
        UPDATE tasks t SET
            seq = coalesce(t.seq, (extract(epoch FROM t.created_at) * 1000000)::bigint - 9000000000000000),
            claim_token = CASE WHEN t.status = 'running' AND t.claim_token = 0 THEN nextval('claim_token_seq') ELSE t.claim_token END
        FROM page WHERE t.task_id = page.task_id
          AND (t.seq IS NULL OR (t.status || '' = 'running' AND t.claim_token = 0))
    )
    SELECT max(page.task_id) INTO last_id FROM page;
    RETURN last_id;
END $$;
