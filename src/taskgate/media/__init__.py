"""The store of what tasks make: streamed in under a running task's token, streamed out in ranges.

place.py says where (TASKGATE_MEDIA_STORE), backend.py what a place has to do, postgres.py, files.py and s3.py do it;
upload.py is what a worker writes through, collect.py deletes what no task refers to any more.
"""
