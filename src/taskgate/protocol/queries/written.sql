-- Whether one of these tasks ($1 text[]) is there.
SELECT EXISTS (SELECT FROM tasks t WHERE t.task_id = ANY ($1::text[]))
