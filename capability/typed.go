package capability

// A Judge says what there is to say about a decoded config of type C in form f:
// it appends problems in field order, claims and surface lines to in. Open
// holds the fields that were not decoded because they are references.
type Judge[C any] func(c *C, f Form, open Open, in *Inspection)

// Inspecting returns the Inspect function of a type whose config is a C.
// Nullable is as in [Inspection.Read].
func Inspecting[C any](judge Judge[C], nullable ...string) func(Request, Form, *Inspection) {
	return func(r Request, f Form, in *Inspection) {
		c := new(C)
		if open, ok := in.Read(r, f, c, nullable...); ok {
			judge(c, f, open, in)
		}
	}
}

// DecodeValid decodes r, which must be of type typ, and returns its config only
// if it is valid in the effective form. The error is an [InvalidError].
func DecodeValid[C any](typ string, r Request, judge Judge[C], nullable ...string) (C, error) {
	var c, zero C
	var in Inspection
	if r.Type != typ {
		in.Problem("type", "is not "+typ)
	} else if open, ok := in.Read(r, Effective, &c, nullable...); ok {
		judge(&c, Effective, open, &in)
	}
	if err := in.Err(r.Type); err != nil {
		return zero, err
	}
	return c, nil
}

// Peek decodes r without judging values and with references in it, for rules that
// concern other entries as well. It is false if r does not have the shape of a C.
func Peek[C any](r Request) (C, bool) {
	var in Inspection
	var c C
	_, ok := in.Read(r, Published, &c)
	return c, ok
}

// EncodeValid returns the request of type typ with config c, or an
// [InvalidError] if c breaks a rule of its type. Writing an entry that no
// reader accepts, or dropping the field that makes it so, could turn a stated
// nothing into an unstated everything.
func EncodeValid[C any](typ string, c C, judge Judge[C]) (Request, error) {
	var in Inspection
	judge(&c, Effective, nil, &in)
	if err := in.Err(typ); err != nil {
		return Request{}, err
	}
	return Encode(typ, c)
}
