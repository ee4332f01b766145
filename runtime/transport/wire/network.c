#include "transport/wire/network.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static bool first_of_card(const address *list, int i)
{
	for (int k = 0; k < i; k++)
		if (list[k].card && list[k].card == list[i].card)
			return false;
	return true;
}

static bool same_address(const address *a, const address *b)
{
	return a->bytes == b->bytes && !memcmp(a->ip, b->ip, a->bytes);
}

static void network_add(network_list *l, const address *a)
{
	for (int k = 0; k < l->n; k++) {
		network *net = &l->of[k];

		if (net->net.prefix != a->prefix || !address_in(a, &net->net, a->prefix))
			continue;
		net->shared |= same_address(a, &net->net);
		net->nodes++;
		net->claimed = net->claimed < a->speed ? net->claimed : a->speed;
		return;
	}
	if (l->n < NETWORKS_MAX)
		l->of[l->n++] = (network){.net = *a, .claimed = a->speed, .nodes = 1};
}

void networks_find(network_list *l, const endpoint *endpoints, const int32_t *node, int nranks, int nnodes)
{
	int seen = 0, kept = 0;
	memset(l, 0, sizeof *l);
	/* Nodes are numbered by their first rank. */
	for (int r = 0; r < nranks && seen < nnodes; r++) {
		const endpoint *e = &endpoints[r];

		if (node[r] != seen)
			continue;
		seen++;
		for (int i = 0; i < e->naddr; i++)
			if (first_of_card(e->addr, i))
				network_add(l, &e->addr[i]);
	}
	for (int k = 0; k < l->n; k++)
		if (l->of[k].nodes > 1 && !l->of[k].shared)
			l->of[kept++] = l->of[k];
	l->n = kept;
}

bool networks_unclear(const network_list *l)
{
	bool known = true;
	for (int k = 0; k < l->n; k++)
		known &= l->of[k].claimed > 0;
	return l->n > 1 && !known;
}

int network_of(const network_list *l, const address *list, int n, int i)
{
	int first = i;
	for (int k = n - 1; k >= 0; k--)
		if (list[i].card && list[k].card == list[i].card)
			first = k;
	for (int k = 0; k < l->n; k++)
		if (address_in(&list[first], &l->of[k].net, l->of[k].net.prefix))
			return k;
	return -1;
}

void network_name(const network *net, char out[ADDRESS_TEXT])
{
	unsigned char ip[16] = {0};
	char text[INET6_ADDRSTRLEN];
	int whole = net->net.prefix / 8, rest = net->net.prefix % 8;
	memcpy(ip, net->net.ip, (size_t)whole);
	if (rest)
		ip[whole] = (unsigned char)(net->net.ip[whole] & (0xff00 >> rest));
	inet_ntop(net->net.bytes == 16 ? AF_INET6 : AF_INET, ip, text, sizeof text);
	snprintf(out, ADDRESS_TEXT, "%s/%u", text, net->net.prefix);
}

enum { REACH_OURS, REACH_NOTHING, REACH_UNKNOWN, REACH_SUBNET };

/* Says how well peer[i] reaches it: the higher, the better. */
static uint64_t address_score(const network_list *l, const address *own, int nown, int same_node, const address *peer,
                              int n, int i)
{
	uint64_t reach = REACH_UNKNOWN, speed = 0, ipv4 = peer[i].bytes == 4;
	int k = l && l->measured ? network_of(l, peer, n, i) : -1;
	for (int j = 0; j < nown; j++) {
		if (!same_node && same_address(&own[j], &peer[i]))
			return ipv4;
		if (!address_in(&peer[i], &own[j], own[j].prefix))
			continue;
		reach = REACH_SUBNET;
		if (own[j].speed && peer[i].speed)
			speed = own[j].speed < peer[i].speed ? own[j].speed : peer[i].speed;
	}
	if (k >= 0 && reach == REACH_SUBNET) {
		speed = l->of[k].rate;
		reach = speed ? reach : REACH_NOTHING;
	}
	return reach << 40 | speed << 1 | ipv4;
}

void network_address_order(const network_list *l, const address *own, int nown, int same_node, const address *peer,
                           int n, int order[ADDRESS_MAX])
{
	uint64_t score[ADDRESS_MAX];
	for (int i = 0, j; i < n; i++) {
		score[i] = address_score(l, own, nown, same_node, peer, n, i);
		for (j = i; j > 0 && score[order[j - 1]] < score[i]; j--)
			order[j] = order[j - 1];
		order[j] = i;
	}
}
