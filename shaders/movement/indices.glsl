// Indices of 32 or 64 bits, held in a buffer of words: WIDE says which.

// The index that element j holds along an axis of n, counted from the front; -1 where it is outside.
#define INDEX_OF(words, j, n, result)                                                      \
    {                                                                                      \
        int index_ = words[WIDE ? 2 * (j) : (j)];                                          \
        bool inside_ = index_ < int(n) && index_ >= -int(n);                               \
        if (WIDE) inside_ = inside_ && words[2 * (j) + 1] == index_ >> 31;                 \
        result = !inside_ ? -1 : index_ < 0 ? index_ + int(n) : index_;                    \
    }
