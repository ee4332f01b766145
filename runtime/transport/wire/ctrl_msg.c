#include "transport/wire/ctrl_msg.h"

#include "transport/wire/wire.h"

#define CTRL_MSG_MAGIC 0x46434731u /* "1GCF" */

size_t ctrl_msg_write(unsigned char *out, const ctrl_msg *f, record_crypto *crypto)
{
	unsigned char *p = crypto ? out + RECORD_HEAD : out;
	size_t bytes = CTRL_MSG_BYTES + f->bytes;
	put32(p, CTRL_MSG_MAGIC);
	p[4] = (unsigned char)f->type;
	p[5] = 0;
	p[6] = (unsigned char)(f->bytes & 0xff);
	p[7] = (unsigned char)(f->bytes >> 8);
	put32(p + 8, (uint32_t)f->a);
	put32(p + 12, (uint32_t)f->b);
	if (f->bytes)
		memcpy(p + CTRL_MSG_BYTES, f->text, f->bytes);
	return crypto ? record_crypto_seal(crypto, out, bytes) : bytes;
}

int ctrl_msg_read(unsigned char *in, size_t have, record_crypto *crypto, ctrl_msg *f)
{
	unsigned char *p = in;
	size_t sealed = 0;
	if (crypto) {
		if (have < RECORD_HEAD)
			return 0;
		sealed = record_crypto_length(in);
		if (sealed < CTRL_MSG_BYTES || sealed > CTRL_MSG_BYTES + CTRL_MSG_TEXT)
			return CTRL_MSG_ALTERED;
		if (have < sealed + RECORD_OVERHEAD)
			return 0;
		p = in + RECORD_HEAD;
		if (record_crypto_open(crypto, in, sealed, p))
			return CTRL_MSG_ALTERED;
	} else if (have < CTRL_MSG_BYTES) {
		return 0;
	}
	f->type = p[4];
	f->bytes = p[6] | (size_t)p[7] << 8;
	f->a = (int)get32(p + 8);
	f->b = (int)get32(p + 12);
	f->text = (const char *)p + CTRL_MSG_BYTES;
	if (get32(p) != CTRL_MSG_MAGIC || f->type < CTRL_HEARTBEAT || f->type > CTRL_TALLY || p[5] ||
	    f->bytes > CTRL_MSG_TEXT || (f->bytes && f->type != CTRL_FAIL && f->type < CTRL_RATES))
		return CTRL_MSG_BAD;
	if (crypto)
		return f->bytes == sealed - CTRL_MSG_BYTES ? (int)(sealed + RECORD_OVERHEAD) : CTRL_MSG_BAD;
	return have < CTRL_MSG_BYTES + f->bytes ? 0 : (int)(CTRL_MSG_BYTES + f->bytes);
}
