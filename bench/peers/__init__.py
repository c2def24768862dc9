"""Other queues under the same load, each from its own public package in an environment of its own."""
