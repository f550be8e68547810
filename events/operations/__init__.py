"""Operations on rooms that need no Spark: one file each."""
