package vet

import (
	"bytes"
	"go/ast"
	"go/token"
	"strings"
)

const allowPrefix = "//tenuto:allow"

// allowances are the lines for which the analyzer reports no diagnostics.
type allowances map[sourceLine]bool

type sourceLine struct {
	file   string
	number int
}

func (a allowances) covers(files *token.FileSet, pos token.Pos) bool {
	where := files.Position(pos)
	return a[sourceLine{where.Filename, where.Line}]
}

// findAllowances reads the comments. It reports comments without a reason, which allow
// nothing.
func (in *inspection) findAllowances() (allowances, error) {
	allowed := make(allowances)
	for _, file := range in.Files {
		for _, group := range file.Comments {
			for _, comment := range group.List {
				if err := in.readAllowance(allowed, group, comment); err != nil {
					return nil, err
				}
			}
		}
	}
	return allowed, nil
}

func (in *inspection) readAllowance(allowed allowances, group *ast.CommentGroup, comment *ast.Comment) error {
	reason, ok := strings.CutPrefix(comment.Text, allowPrefix)
	if !ok || reason != "" && reason[0] != ' ' && reason[0] != '\t' {
		return nil
	}
	// A second comment on the line is not a reason.
	reason, _, _ = strings.Cut(reason, "//")
	if strings.TrimSpace(reason) == "" {
		in.report(finding{missingReason, comment.Pos(), "tenuto:allow gives no reason", ""})
		return nil
	}
	alone, err := in.standsAlone(comment)
	if err != nil {
		return err
	}
	at := in.Fset.Position(comment.Pos())
	if alone {
		at.Line = in.Fset.Position(group.End()).Line + 1
	}
	allowed[sourceLine{at.Filename, at.Line}] = true
	return nil
}

// standsAlone reports whether no code precedes the comment on its line.
func (in *inspection) standsAlone(comment *ast.Comment) (bool, error) {
	file := in.Fset.File(comment.Pos())
	content, err := in.ReadFile(file.Name())
	if err != nil {
		return false, err
	}
	end := file.Offset(comment.Pos())
	if end > len(content) {
		return true, nil // not the parsed file, because of a //line directive
	}
	before := content[bytes.LastIndexByte(content[:end], '\n')+1 : end]
	return len(bytes.TrimSpace(before)) == 0, nil
}
