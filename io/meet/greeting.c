/* Who may come in: keys out of the token, the greeting, the token as text. */
#include "meet.h"

#include <stdio.h>
#include <string.h>

#include "config.h"
#include "staging.h"

static const unsigned char magic[4] = {'G', 'C', 'M', '1'};

void meet_keys_make(meet_keys *k, const unsigned char token[SECRET_BYTES])
{
	secret_expand(token, "gradcomp meet 1 accept", NULL, 0, k->proof[ROLE_ACCEPT]);
	secret_expand(token, "gradcomp meet 1 connect", NULL, 0, k->proof[ROLE_CONNECT]);
	secret_expand(token, "gradcomp meet 1 tag", NULL, 0, k->tag);
	secret_expand(token, "gradcomp meet 1 hide", NULL, 0, k->hide);
}

void meet_hello_write(const meet_hello *h, unsigned char out[MEET_HELLO_BYTES])
{
	memcpy(out, magic, 4);
	put32(out + 4, h->rank);
	put32(out + 8, h->nranks);
	put32(out + 12, 0);
	memcpy(out + 16, h->nonce, NONCE_BYTES);
}

const char *meet_hello_read(const unsigned char in[MEET_HELLO_BYTES], meet_hello *h)
{
	if (memcmp(in, magic, sizeof magic))
		return "it does not speak this version of gradcomp's meeting protocol";
	h->rank = get32(in + 4);
	h->nranks = get32(in + 8);
	if (!h->nranks || h->nranks > MEET_RANKS_MAX || h->rank >= h->nranks || get32(in + 12))
		return "its greeting is malformed";
	memcpy(h->nonce, in + 16, NONCE_BYTES);
	return NULL;
}

void meet_proof(const meet_keys *k, handshake_role role, const unsigned char hello[MEET_HELLO_BYTES],
                const unsigned char nonce[NONCE_BYTES], unsigned char mac[SECRET_BYTES])
{
	secret_mac m;

	secret_mac_init(&m, k->proof[role], SECRET_BYTES);
	secret_mac_update(&m, hello, MEET_HELLO_BYTES);
	secret_mac_update(&m, nonce, NONCE_BYTES);
	secret_mac_final(&m, mac);
}

/* munged's socket by security.secret, "" its usual place; NULL: munge is not to be
 * used. */
static const char *munge_socket(const struct config *c)
{
	const char *way = config_str(c, "security.secret");

	if (!strncmp(way, "munge:", 6))
		return way + 6;
	return !strcmp(way, "munge") || !strcmp(way, "auto") ? "" : NULL;
}

gradcomp_status meet_token_write(const struct config *c, const unsigned char token[SECRET_BYTES],
                                 char text[MEET_TOKEN_TEXT], gradcomp_error *err)
{
	const char *socket = munge_socket(c);
	gradcomp_error why = {0};
	gradcomp_status st = GRADCOMP_ERR_NOTFOUND;

	memcpy(text, "munge=", 6);
	if (socket)
		st = munge_seal(socket, token, text + 6, &why);
	if (st && !strncmp(config_str(c, "security.secret"), "munge", 5))
		return error_set(err, why.status, "%s", why.text);
	if (st) {
		memcpy(text, "plain=", 6);
		sha256_hex(token, text + 6);
	}
	return GRADCOMP_OK;
}

gradcomp_status meet_token_read(const struct config *c, const char *text, unsigned char token[SECRET_BYTES],
                                gradcomp_error *err)
{
	const char *socket = munge_socket(c);

	if (!strncmp(text, "munge=", 6))
		return munge_open(socket ? socket : "", text + 6, token, err);
	if (strncmp(text, "plain=", 6) || strlen(text) != 6 + 2 * SECRET_BYTES || !stage_unhex(text + 6, token))
		return error_set(err, GRADCOMP_ERR_INVALID, "the token of the meeting place is malformed");
	return GRADCOMP_OK;
}
