#include "frame.h"

#include "wire.h"

#define FRAME_MAGIC 0x46434731u /* "1GCF" */

size_t frame_write(unsigned char *out, const frame *f, seals *seal)
{
	unsigned char *p = seal ? out + SEAL_HEAD : out;
	size_t bytes = FRAME_BYTES + f->bytes;

	put32(p, FRAME_MAGIC);
	p[4] = (unsigned char)f->type;
	p[5] = 0;
	p[6] = (unsigned char)(f->bytes & 0xff);
	p[7] = (unsigned char)(f->bytes >> 8);
	put32(p + 8, (uint32_t)f->a);
	put32(p + 12, (uint32_t)f->b);
	if (f->bytes)
		memcpy(p + FRAME_BYTES, f->text, f->bytes);
	return seal ? seal_record(seal, out, bytes) : bytes;
}

int frame_read(unsigned char *in, size_t have, seals *seal, frame *f)
{
	unsigned char *p = in;
	size_t sealed = 0;

	if (seal) {
		if (have < SEAL_HEAD)
			return 0;
		sealed = seal_length(in);
		if (sealed < FRAME_BYTES || sealed > FRAME_BYTES + FRAME_TEXT)
			return FRAME_ALTERED;
		if (have < sealed + SEAL_EXTRA)
			return 0;
		p = in + SEAL_HEAD;
		if (seal_open(seal, in, sealed, p))
			return FRAME_ALTERED;
	} else if (have < FRAME_BYTES) {
		return 0;
	}
	f->type = p[4];
	f->bytes = p[6] | (size_t)p[7] << 8;
	f->a = (int)get32(p + 8);
	f->b = (int)get32(p + 12);
	f->text = (const char *)p + FRAME_BYTES;
	if (get32(p) != FRAME_MAGIC || f->type < FRAME_HEARTBEAT || f->type > FRAME_LEFT || p[5] ||
	    f->bytes > FRAME_TEXT || (f->bytes && f->type != FRAME_FAIL))
		return FRAME_BAD;
	if (seal)
		return f->bytes == sealed - FRAME_BYTES ? (int)(sealed + SEAL_EXTRA) : FRAME_BAD;
	return have < FRAME_BYTES + f->bytes ? 0 : (int)(FRAME_BYTES + f->bytes);
}
