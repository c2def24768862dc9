package worker

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// statement is one of the functions' calls, not sent yet.
type statement struct {
	sql    string
	params []param
}

// answer is what the database said to one statement of a pipeline.
type answer struct {
	rows [][][]byte
	err  error // of this statement alone
}

// pipeline sends statements in one round trip. Each is a transaction of its own, and commits or fails by itself.
// answered is called with each answer as it comes, in order. An error is the connection's: it is of no use any more, and
// whatever was not answered may have happened or not. Not for use behind a transaction-mode pooler.
func (c calls) pipeline(ctx context.Context, statements []statement, answered func(int, answer)) error {
	ready := make([]*pgconn.StatementDescription, len(statements))
	for i, each := range statements {
		var err error
		if ready[i], err = c.prepare(ctx, each.sql); err != nil {
			return err
		}
	}
	pipeline := c.conn.StartPipeline(ctx)
	for i, each := range statements {
		values, formats := encoded(each.params)
		pipeline.SendQueryStatement(ready[i], values, formats, nil)
		pipeline.SendPipelineSync()
	}
	if err := pipeline.Flush(); err != nil {
		return err
	}
	for i := range statements {
		var got answer
		found, err := pipeline.GetResults()
		switch result := found.(type) {
		case *pgconn.ResultReader:
			read := result.Read()
			got = answer{read.Rows, read.Err}
		default:
			got.err = err
		}
		if c.conn.IsClosed() {
			return got.err
		}
		if _, err := pipeline.GetResults(); err != nil { // the sync
			return err
		}
		answered(i, got)
	}
	return pipeline.Close()
}

// prepare is the statement as the session knows it: parsing and planning cost more than a short call.
func (c calls) prepare(ctx context.Context, sql string) (*pgconn.StatementDescription, error) {
	if known := c.prepared[sql]; known != nil {
		return known, nil
	}
	name := fmt.Sprintf("taskgate_%d", len(c.prepared))
	made, err := c.conn.Prepare(ctx, name, fmt.Sprintf(sql, c.schema), nil)
	if err == nil {
		c.prepared[sql] = made
	}
	return made, err
}

func encoded(params []param) (values [][]byte, formats []int16) {
	values, formats = make([][]byte, len(params)), make([]int16, len(params))
	for i, each := range params {
		values[i], formats[i] = each.value, each.format
	}
	return values, formats
}
