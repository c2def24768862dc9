FROM taskgate-standin-debian
COPY . /usr/local/go
ENV PATH=/usr/local/go/bin:$PATH
CMD ["go", "version"]
