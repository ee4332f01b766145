/* Operators whose launches are looked at: what CUDA says after the last launch of an
 * operator is kept with the operator's name until the thread asks for it, and until then
 * operators do nothing. A file that
 * includes this has device_error(): words for what has failed on this thread since it
 * was last called, or NULL. */
#ifndef OPERATORS_CUDA_CUDA_CHECKED_H
#define OPERATORS_CUDA_CUDA_CHECKED_H

#include <stdio.h>
#include <type_traits>

namespace
{

struct failure {
	bool pending;
	char words[128];
};
thread_local failure first_failure;

/* A launch that went well does not take back what an earlier one said, so one look
 * after all of an operator's is enough. What kernels did wrong while they ran comes
 * to whoever is next. */
inline void look(const char *name)
{
	const char *why = device_error();
	if (!why)
		return;
	first_failure.pending = true;
	snprintf(first_failure.words, sizeof first_failure.words, "%s: %s", name, why);
}

const char *checked_failed()
{
	const bool was = first_failure.pending;
	first_failure.pending = false;
	return was ? first_failure.words : nullptr;
}

/* NAME::text() names the operator F. */
template <class NAME, auto F, class TYPE = decltype(F)> struct checked;
template <class NAME, auto F, class R, class... A> struct checked<NAME, F, R (*)(A...)> {
	static R call(A... a)
	{
		if constexpr (std::is_void<R>::value) {
			if (first_failure.pending)
				return;
			F(a...);
			look(NAME::text());
		} else {
			if (first_failure.pending)
				return GRADCOMP_OK;
			const R st = F(a...);
			look(NAME::text());
			return st;
		}
	}
};

} // namespace

/* t.name: the checked `function`. */
#define CHECKED(t, name, function) \
	do { \
		struct named { \
			static const char *text() { return #name; } \
		}; \
		(t).name = checked<named, function>::call; \
	} while (0)

#endif
