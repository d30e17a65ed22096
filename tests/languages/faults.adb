--  Exceptions raised by checks, by calls, and by instructions that fault (-fnon-call-exceptions, which GNAT always has):
--  the run-time looks up the faulting instruction itself in the exception table, not the call before it.
with Ada.Text_IO; use Ada.Text_IO;
with Ada.Exceptions; use Ada.Exceptions;
with Ada.Finalization;

procedure Faults is

   package Work is
      type Cell is record
         Next_Value : Integer;
         Weight     : Integer;
      end record
        with Volatile;
      type Link is access all Cell;
      type Numbers is array (Natural range <>) of Integer;
      type Guard is new Ada.Finalization.Limited_Controlled with record
         Id : Integer := 0;
      end record;
      overriding procedure Finalize (G : in out Guard);
      Closed : Integer := 0;

      function Quotient (A, B : Integer) return Integer;
      function Read_Through (P : Link; Default : Integer) return Integer;
      function Read_Twice (P, Q : Link) return Integer;
      procedure Store (P : Link; V : Integer; Done : out Integer);
      function Guarded (P : Link; D : Integer) return Integer;
      function Outer (P : Link; D : Integer) return Integer;
      function Kept_Over (P : Link; A, B, C : Integer) return Integer;
      function Looped (A : Numbers; B : Numbers) return Integer;
      function Indexed (A : Numbers; I : Integer) return Integer;
      function Named (K : Integer) return Integer;
      function Mean (X, Y : Float) return Integer;
      type Operation is access function (A, B : Integer) return Integer;
      function Through (F : Operation; A, B : Integer) return Integer;
      type Reader is access function (P : Link; Default : Integer) return Integer;
      function Choose (K : Integer) return Reader;
      pragma No_Inline (Quotient);
      pragma No_Inline (Read_Through);
      pragma No_Inline (Read_Twice);
      pragma No_Inline (Store);
      pragma No_Inline (Guarded);
      pragma No_Inline (Outer);
      pragma No_Inline (Kept_Over);
      pragma No_Inline (Looped);
      pragma No_Inline (Indexed);
      pragma No_Inline (Named);
      pragma No_Inline (Mean);
      pragma No_Inline (Through);
      pragma No_Inline (Choose);
   end Work;

   package body Work is
      Own_Error : exception;

      overriding procedure Finalize (G : in out Guard) is
      begin
         Closed := Closed + G.Id;
      end Finalize;

      --  The division faults: SIGFPE.
      function Quotient (A, B : Integer) return Integer is
         pragma Suppress (All_Checks);
      begin
         return A / B;
      exception
         when Constraint_Error => return -1;
      end Quotient;

      --  The load faults: SIGSEGV.
      function Read_Through (P : Link; Default : Integer) return Integer is
         pragma Suppress (All_Checks);
      begin
         return P.Weight * 3;
      exception
         when others => return Default;
      end Read_Through;

      --  Two loads with handlers of their own.
      function Read_Twice (P, Q : Link) return Integer is
         pragma Suppress (All_Checks);
         R : Integer := 0;
      begin
         begin
            R := R + P.Weight;
         exception
            when others => R := R + 100;
         end;
         begin
            R := R * 2 + Q.Next_Value;
         exception
            when others => R := R + 7000;
         end;
         return R;
      end Read_Twice;

      procedure Store (P : Link; V : Integer; Done : out Integer) is
         pragma Suppress (All_Checks);
      begin
         Done := 0;
         P.Next_Value := V;
         Done := 1;
      exception
         when others => Done := 2;
      end Store;

      --  A finalizer between the fault and its handler.
      function Guarded (P : Link; D : Integer) return Integer is
         pragma Suppress (All_Checks);
      begin
         declare
            G : Guard;
            H : Guard;
         begin
            G.Id := 1;
            H.Id := P.Weight;
            if D > 5 then
               G.Id := 10_000 / (D - 8);
               raise Own_Error;
            end if;
            return P.Next_Value / D;
         end;
      exception
         when Own_Error => return -2;
         when Constraint_Error => return -3;
         when Storage_Error => return -4;
      end Guarded;

      --  No handler here: the exception passes, after the finalizer.
      function Passing (P : Link; D : Integer) return Integer is
         pragma Suppress (All_Checks);
         G : Guard;
      begin
         G.Id := 5;
         return P.Weight / D;
      end Passing;

      function Outer (P : Link; D : Integer) return Integer is
      begin
         return Passing (P, D) + 1;
      exception
         when E : others =>
            return Exception_Name (E)'Length + Integer'Min (D, 0);
      end Outer;

      --  Values that only the handler needs, in registers that calls keep.
      function Kept_Over (P : Link; A, B, C : Integer) return Integer is
         pragma Suppress (All_Checks);
         X : constant Integer := Quotient (A, 3);
         Y : constant Integer := Quotient (B, 5);
         Z : constant Integer := Quotient (C, 7);
      begin
         if P.Weight > 50 then
            return P.Next_Value;
         elsif P.Weight > 20 then
            return P.Next_Value * 2;
         end if;
         return 0;
      exception
         when others => return X + Y * 2 + Z * 3;
      end Kept_Over;

      function Looped (A : Numbers; B : Numbers) return Integer is
         pragma Suppress (All_Checks);
         S : Integer := 0;
      begin
         for I in A'Range loop
            begin
               if A (I) mod 3 = 1 then
                  S := S + 2;
               end if;
               S := (S + A (I) / B (I)) mod 65_521;
            exception
               when Constraint_Error => S := S + 1000;
            end;
         end loop;
         return S;
      end Looped;

      --  A check, which calls the run-time.
      function Indexed (A : Numbers; I : Integer) return Integer is
      begin
         return A (I);
      exception
         when Constraint_Error => return -I;
      end Indexed;

      function Named (K : Integer) return Integer is
         R : Integer := 0;
      begin
         begin
            case K mod 5 is
               when 0 => raise Own_Error with "own";
               when 1 => raise Constraint_Error;
               when 2 => raise Program_Error;
               when 3 => R := Quotient (K, K - 3);
               when others => R := K;
            end case;
         exception
            when E : Own_Error => R := Exception_Message (E)'Length;
            when Program_Error => R := 40;
         end;
         return R;
      exception
         when Constraint_Error => return 50;
      end Named;

      function Mean (X, Y : Float) return Integer is
      begin
         return Integer (X / Y);
      exception
         when others => return -9;
      end Mean;

      function Through (F : Operation; A, B : Integer) return Integer is
      begin
         return F (A, B) + 1;
      exception
         when Constraint_Error => return -5;
      end Through;

      function Negated (P : Link; Default : Integer) return Integer is
         pragma Suppress (All_Checks);
      begin
         return -P.Next_Value;
      exception
         when others => return -Default;
      end Negated;

      function Choose (K : Integer) return Reader is
        (if K mod 2 = 0 then Read_Through'Access else Negated'Access);
   end Work;

   use Work;

   function Divide (A, B : Integer) return Integer is
      pragma Suppress (All_Checks);
   begin
      return A / B;
   end Divide;

   Here : aliased Cell := (Next_Value => 1, Weight => 2);
   A, B : Numbers (0 .. 15);
   Sum  : Integer := 0;
   Done : Integer;

   procedure Add (V : Integer) is
   begin
      Sum := (Sum * 31 + V) mod 1_000_003;
   end Add;
begin
   for I in 1 .. 400 loop
      declare
         P : constant Link := (if I mod 7 = 0 then null else Here'Unchecked_Access);
         Q : constant Link := (if I mod 5 = 0 then null else Here'Unchecked_Access);
      begin
         Here.Weight := I mod 90;
         Add (Quotient (I * 100, I mod 6));
         Add (Read_Through (P, 17));
         Add (Read_Twice (P, Q));
         Store (Q, I, Done);
         Add (Done);
         Add (Guarded (P, I mod 12));
         Add (Outer (Q, I mod 4));
         Add (Kept_Over (P, I, I * 2, I * 3));
         for K in A'Range loop
            A (K) := I + K;
            B (K) := (I * K) mod 9;
         end loop;
         Add (Looped (A, B));
         Add (Indexed (A, I mod 20));
         Add (Named (I));
         Add (Mean (Float (I), Float (I mod 3) * 1.0e-30));
         Add (Through (Quotient'Access, I, I mod 4));
         Add (Choose (I).all (Q, I));
         begin
            Add (Divide (I, I mod 3));
         exception
            when E : Constraint_Error => Add (Exception_Name (E)'Length);
         end;
      end;
   end loop;
   Put_Line ("sum" & Integer'Image (Sum) & " closed" & Integer'Image (Closed));
end Faults;
