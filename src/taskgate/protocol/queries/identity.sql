-- Which tasks these are, the same from every host and under every name of the host: the server's cluster, the database
-- and the schema ($1), as a hash that tells none of them.
SELECT left(encode(sha256(convert_to(c.system_identifier || '/' || current_database() || '/' || $1::text, 'UTF8')), 'hex'), 16)
FROM pg_control_system() c
