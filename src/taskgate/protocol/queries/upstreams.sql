-- Every upstream, as it stands in the table.
SELECT name, api, base_url, key_env, key_file, models, model, project, location, credentials_file,
       max_concurrent, requests_per_minute, tokens_per_minute, enabled, readable(updated_at) AS updated_at
FROM upstreams ORDER BY name
