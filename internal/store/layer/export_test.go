package layer

// DecodeInventory and Encode are open to the tests of the stored form.
func DecodeInventory(data []byte) (Inventory, error) { return decode(data) }
func (inv Inventory) Encode() []byte                 { return inv.encode() }
