-- Every registered task type.
SELECT name, request_schema::text AS request_schema, description, registered_at, updated_at FROM task_types ORDER BY name
