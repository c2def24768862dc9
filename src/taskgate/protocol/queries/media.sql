-- One medium of a task, as far as the tenant may see it: where its bytes are, and what they are.
SELECT m.mime, b.id AS blob, b.store, b.object, encode(b.sha256, 'hex') AS sha256, b.bytes
FROM task_media m JOIN media_blobs b ON b.id = m.blob JOIN tasks t USING (task_id)
WHERE m.task_id = $1 AND m.name = $2 AND ($3::text IS NULL OR t.tenant = $3)
