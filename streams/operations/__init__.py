"""Operations on streams: one file each."""
