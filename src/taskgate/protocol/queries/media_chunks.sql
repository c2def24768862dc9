-- Chunks of a blob, in order.
SELECT data FROM media_chunks WHERE blob = $1 AND n >= $2 AND n < $3 ORDER BY n
