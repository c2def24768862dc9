FROM taskgate-standin-debian
RUN ln -s /usr/bin/python3 /usr/local/bin/python
CMD ["python"]
